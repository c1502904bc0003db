package driver

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
)

// An abort before the permit leaves nothing behind. After the permit, its flip completes and is the last of the chain.
func TestAbort(t *testing.T) {
	for phase, epoch := range map[string]uint64{"": 1, "prepare": 1, "stage": 1, "flip": 2, "retire": 2} {
		t.Run("in "+phase, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 3)
				_, err := d.Apply(t.Context(), expert(2))
				require.NoError(t, err)
				d.Abort = &Abort{}
				ask := func() { d.Abort.Ask(); d.Abort.Ask() }
				if phase == "" {
					ask()
				}
				d.Hooks.Progress = func(e Event) {
					if e.Flip == 1 && e.Phase == phase {
						ask()
					}
				}
				record, err := d.Apply(t.Context(), tensor(3))
				require.ErrorIs(t, err, ErrAborted)
				require.Len(t, record.Flips, int(epoch-1))
				require.Equal(t, epoch, w.Layout().Epoch)
				require.True(t, w.Idle(), "nothing is left half done")
				if phase == "" {
					return // no attempt was started
				}
				var intent Intent
				_, err = store.Load(t.Context(), d.Store, keyIntent, &intent)
				require.NoError(t, err)
				require.Equal(t, map[uint64]IntentState{1: Aborted, 2: Done}[epoch], intent.State)
			})
		})
	}
}

// An abort after the permit of the last flip comes too late: the Apply succeeds.
func TestAbort_WhenLastFlipPermitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		d.Abort = &Abort{}
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "flip" {
				d.Abort.Ask()
			}
		}
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		require.EqualValues(t, 1, w.Layout().Epoch)
	})
}

// No permit follows Ask.
func TestAbortRequestPreventsPermit(t *testing.T) {
	a := &Abort{}
	a.Ask()
	require.ErrorIs(t, a.permit(func() error { t.Error("the permit was written"); return nil }), ErrAborted)
}
