package store

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompareAndSwap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "store.json")
	s, err := OpenFile(path)
	require.NoError(t, err)
	ctx := context.Background()
	record, err := s.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, record.Version)

	v, err := s.CompareAndSwap(ctx, "a", 0, json.RawMessage(`{"x":1}`))
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	_, err = s.CompareAndSwap(ctx, "a", 0, json.RawMessage(`{"x":2}`))
	require.ErrorIs(t, err, ErrConflict)

	again, err := OpenFile(path)
	require.NoError(t, err)
	var got struct{ X int }
	v, err = Load(ctx, again, "a", &got)
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	require.Equal(t, 1, got.X)
}

// Memory behaves like a file, but does not outlive the process.
func TestMemory(t *testing.T) {
	var s Memory
	ctx := t.Context()
	record, err := s.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, record.Version)
	value := json.RawMessage(`{"X":1}`)
	v, err := s.CompareAndSwap(ctx, "a", 0, value)
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	value[5] = '2' // the caller may reuse its buffer
	for _, stale := range []uint64{0, 2} {
		_, err = s.CompareAndSwap(ctx, "a", stale, value)
		require.ErrorIs(t, err, ErrConflict)
	}
	var got struct{ X int }
	v, err = Load(ctx, &s, "a", &got)
	require.NoError(t, err)
	require.EqualValues(t, 1, v)
	require.Equal(t, 1, got.X)
}

// Many writers each add one to a counter. The sum is right only if the swap is atomic.
func TestConcurrentWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.json")
	const writers, each = 4, 10
	var wait sync.WaitGroup
	for range writers {
		wait.Go(func() {
			s, err := OpenFile(path)
			if err != nil {
				t.Error(err)
				return
			}
			for done := 0; done < each; {
				var n int
				v, err := Load(t.Context(), s, "n", &n)
				if err != nil {
					t.Error(err)
					return
				}
				switch _, err = Save(t.Context(), s, "n", v, n+1); {
				case err == nil:
					done++
				case !errors.Is(err, ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	s, err := OpenFile(path)
	require.NoError(t, err)
	var n int
	_, err = Load(t.Context(), s, "n", &n)
	require.NoError(t, err)
	require.Equal(t, writers*each, n)
}

func TestFileStore_WhenContentIsInvalid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"a":`), 0o600))
	s, err := OpenFile(path)
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a")
	require.ErrorContains(t, err, path)
	_, err = s.CompareAndSwap(t.Context(), "a", 0, json.RawMessage(`1`))
	require.Error(t, err)
}
