package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestConflictBackOffGrows(t *testing.T) {
	var p pauses
	a, b := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}
	require.Equal(t, 20*time.Millisecond, p.next(a))
	require.Equal(t, 40*time.Millisecond, p.next(a))
	require.Equal(t, 20*time.Millisecond, p.next(b))
	for range 100 {
		require.LessOrEqual(t, p.next(a), 5*time.Second)
	}
	require.Equal(t, 5*time.Second, p.next(a))
	p.forget(a)
	require.Equal(t, 20*time.Millisecond, p.next(a))
}
