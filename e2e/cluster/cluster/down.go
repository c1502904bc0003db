package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"tangram.dev/e2e/cluster/host"
)

// lockLimit covers a concurrent Up.
const lockLimit = 2 * time.Minute

// Down ends the cluster of a folder and restores the host's state before Up, however far Up came. It is no error if
// there is no cluster. With keepLogs the logs are moved to DIR.logs.
func Down(ctx context.Context, o Options, keepLogs bool) error {
	if err := o.complete(); err != nil {
		return err
	}
	unlock, err := host.Lock(ctx, lockLimit)
	if err != nil {
		return err
	}
	defer unlock()
	return remove(ctx, o, keepLogs)
}

func remove(ctx context.Context, o Options, keepLogs bool) error {
	s, err := readState(o.Dir)
	if err != nil {
		return err
	}
	running, err := supervisors(o.Dir)
	if err != nil {
		return err
	}
	if err := killAll(ctx, running); err != nil {
		return err
	}
	owner, found, err := host.BridgeOwner()
	if err != nil {
		return err
	}
	// If another cluster's bridge exists, this one never changed the host.
	if !found || owner == "" || owner == o.Dir {
		if err := restore(ctx, s); err != nil {
			return err
		}
	}
	logs := filepath.Join(o.Dir, "logs")
	if _, err := os.Stat(logs); err == nil && keepLogs {
		if err := errors.Join(os.RemoveAll(o.Dir+".logs"), os.Rename(logs, o.Dir+".logs")); err != nil {
			return err
		}
	}
	return removeDir(o.Dir)
}

// restore undoes the changes of the host. The bridge is last: no other cluster starts while it exists.
func restore(ctx context.Context, s *state) error {
	groups, err := host.FindCgroups()
	if err != nil {
		return err
	}
	if err := groups.Remove(ctx); err != nil {
		return err
	}
	if s != nil {
		boot, err := bootID()
		if err != nil {
			return err
		}
		if boot == s.Boot {
			if err := errors.Join(groups.Disable(s.Controllers), s.Sysctls.Restore()); err != nil {
				return err
			}
		}
		for _, folder := range slices.Backward(s.Folders) {
			// A folder that is in use by now stays.
			if err := os.Remove(folder); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("folder made by up: %w", err)
			}
		}
	}
	return host.RemoveLinks(ctx)
}

// supervisors returns the supervisors of one cluster.
func supervisors(dir string) ([]host.Supervisor, error) {
	all, err := host.Supervisors()
	return slices.DeleteFunc(all, func(s host.Supervisor) bool { return s.Dir != dir }), err
}

func killAll(ctx context.Context, running []host.Supervisor) error {
	failed := make([]error, len(running))
	var wait sync.WaitGroup
	for i, s := range running {
		wait.Go(func() { failed[i] = s.Kill(ctx, 2*time.Second) })
	}
	wait.Wait()
	return errors.Join(failed...)
}
