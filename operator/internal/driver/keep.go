package driver

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Keeper keeps a world as wanted: it repairs whenever needed and leads it back to the wanted shape as soon as there
// are ranks enough. It survives every error. Only one should be at work; two do no harm.
type Keeper struct {
	// Driver of this round: agents may come and go. Its Hooks are the caller's.
	Driver func(context.Context) (*Driver, error)
	Want   Wanted
	// Did is told of each repair and each apply that did something, or failed.
	Did func(what string, record *Record, err error)
	Log *slog.Logger

	settled string // hash of the layout that was as wanted
}

// How often a keeper looks.
const (
	lookCalm   = 200 * time.Millisecond
	lookBroken = 50 * time.Millisecond
)

// Run until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	pause := pauses(firstRetry, longestRetry)
	for ctx.Err() == nil {
		wait, err := k.round(ctx)
		if err != nil && ctx.Err() == nil {
			wait = pause.NextBackOff()
			k.Log.Warn("keep: again", "in", wait, "cause", err)
		} else {
			pause.Reset()
		}
		_ = sleep(ctx, wait)
	}
}

// round looks once and does what is to do; it says when to look again.
func (k *Keeper) round(ctx context.Context) (time.Duration, error) {
	d, err := k.Driver(ctx)
	if err != nil {
		return 0, err
	}
	look, err := d.Look(ctx)
	if err != nil {
		return 0, err
	}
	if look.Trouble != nil || len(look.Outcasts) > 0 {
		record, err := d.Repair(ctx)
		if err != nil || len(record.Flips) > 0 || len(record.Lost) > 0 || record.WorldEnded != "" {
			k.Did("repair", record, err)
		}
		if look.Trouble != nil {
			return lookBroken, err
		}
	}
	if !look.Unfinished && len(look.Hash) > 0 && string(look.Hash) == k.settled {
		return lookCalm, nil
	}
	if look.Able < k.Want.Ranks && !look.Unfinished {
		return lookCalm, nil
	}
	want, first := k.Want, len(look.Hash) == 0 && k.Want.Shape.Replicates()
	if first { // it reads each byte once; the next round replicates
		want.Shape.Placement = nil
	}
	record, err := d.Apply(ctx, want)
	if errors.Is(err, ErrNeedsRepair) { // it broke meanwhile: no time is to be lost
		k.Did("apply", record, err)
		return lookBroken, nil
	}
	if err != nil {
		k.Did("apply", record, err)
		return 0, err
	}
	if len(record.Flips) > 0 {
		k.Did("apply", record, nil)
	}
	if first {
		return 0, nil
	}
	if look, err = d.Look(ctx); err == nil && look.Trouble == nil {
		k.settled = string(look.Hash)
	}
	return lookCalm, err
}
