package kubestore

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tangram.dev/operator/internal/store"
)

func open(t *testing.T, hooks interceptor.Funcs) (*Store, client.Client) {
	t.Helper()
	key := client.ObjectKey{Namespace: "n", Name: "w-world"}
	c := fake.NewClientBuilder().WithInterceptorFuncs(hooks).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}).Build()
	return &Store{Reader: c, Writer: c, Key: key}, c
}

func TestSaveAndLoad(t *testing.T) {
	s, _ := open(t, interceptor.Funcs{})
	var got string
	v, err := store.Load(t.Context(), s, "intent", &got)
	require.NoError(t, err)
	require.Zero(t, v)
	v, err = store.Save(t.Context(), s, "intent", 0, "a")
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	_, err = store.Save(t.Context(), s, "intent", 0, "b")
	require.ErrorIs(t, err, store.ErrConflict)
	_, err = store.Save(t.Context(), s, "membership", 0, "c")
	require.NoError(t, err, "keys do not disturb each other")
	v, err = store.Load(t.Context(), s, "intent", &got)
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	require.Equal(t, "a", got)
}

// Another operator writes between our read and our write: the API server rejects ours.
func TestSave_WhenWriteIsConcurrent(t *testing.T) {
	between := false
	s, c := open(t, interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
		if !between {
			between = true
			other := &corev1.ConfigMap{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(object), other); err != nil {
				return err
			}
			other.Data = map[string]string{"intent": `{"version":1,"value":"theirs"}`}
			if err := c.Update(ctx, other); err != nil {
				return err
			}
		}
		return c.Update(ctx, object, o...)
	}})
	_, err := store.Save(t.Context(), s, "intent", 0, "ours")
	require.ErrorIs(t, err, store.ErrConflict)
	record, err := (&Store{Reader: c, Writer: c, Key: s.Key}).Get(t.Context(), "intent")
	require.NoError(t, err)
	require.Equal(t, json.RawMessage(`"theirs"`), record.Value)
}

func TestGet_WhenConfigMapIsMissing(t *testing.T) {
	s, c := open(t, interceptor.Funcs{})
	require.NoError(t, c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "w-world"}}))
	_, err := s.Get(t.Context(), "intent")
	require.ErrorContains(t, err, "ConfigMap n/w-world")
	require.NotErrorIs(t, err, store.ErrConflict)
}
