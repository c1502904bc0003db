// Package kubestore keeps a driver's records in one ConfigMap of the API server. Its resourceVersion makes every write
// a compare-and-swap.
package kubestore

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/store"
)

// Store keeps records in a ConfigMap that exists already; another package creates and owns it.
type Store struct {
	Reader client.Reader // live; a cache could hide another driver's write
	Writer client.Writer
	Key    client.ObjectKey
}

func (s *Store) load(ctx context.Context) (*corev1.ConfigMap, error) {
	object := &corev1.ConfigMap{}
	if err := s.Reader.Get(ctx, s.Key, object); err != nil {
		return nil, fmt.Errorf("records of the world: ConfigMap %s: %w", s.Key, err)
	}
	return object, nil
}

func (s *Store) record(object *corev1.ConfigMap, key string) (store.Record, error) {
	var r store.Record
	text, there := object.Data[key]
	if !there {
		return r, nil
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("records of the world: ConfigMap %s, key %q: %w", s.Key, key, err)
	}
	return r, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.Record, error) {
	object, err := s.load(ctx)
	if err != nil {
		return store.Record{}, err
	}
	return s.record(object, key)
}

// CompareAndSwap implements store.Store.
func (s *Store) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	object, err := s.load(ctx)
	if err != nil {
		return 0, err
	}
	have, err := s.record(object, key)
	if err != nil {
		return 0, err
	}
	if have.Version != version {
		return 0, fmt.Errorf("record %q of %s is at version %d, expected %d: %w", key, s.Key, have.Version, version, store.ErrConflict)
	}
	wire, err := json.Marshal(store.Record{Version: version + 1, Value: value})
	if err != nil {
		return 0, fmt.Errorf("record %q: %w", key, err)
	}
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[key] = string(wire)
	// The object carries the resourceVersion that was read, so the API server rejects the write after a conflict.
	if err := s.Writer.Update(ctx, object); err != nil {
		if apierrors.IsConflict(err) {
			return 0, fmt.Errorf("record %q of %s: %w", key, s.Key, store.ErrConflict)
		}
		return 0, fmt.Errorf("record %q of %s: %w", key, s.Key, err)
	}
	return version + 1, nil
}
