package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tangram.dev/e2e/cluster/host"
)

const (
	stateFile    = "state.json"
	newStateFile = stateFile + ".new"
)

// state has the data that Down cannot find by inspection. It is on disk before the host changes.
type state struct {
	Boot    string       `json:"boot"`    // after a reboot, sysctls are not as left
	Sysctls host.Sysctls `json:"sysctls"` // before
	// Folders are mount points that did not exist before.
	Folders []string `json:"folders,omitempty"`
	// Controllers are those that the root of control groups v2 did not delegate.
	Controllers []string `json:"controllers,omitempty"`
	Nodes       int      `json:"nodes"`
	Complete    bool     `json:"complete"` // Up completed
}

func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// readState reads a folder's state: nil if it has none.
func readState(dir string) (*state, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

// write replaces the state file atomically and durably.
func (s *state) write(dir string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, newStateFile)
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(dir, stateFile)); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// removeDir removes a cluster's folder, its state last: until then Down can be repeated. It leaves a folder alone that
// belongs to no cluster.
func removeDir(dir string) error {
	if err := os.Remove(filepath.Join(dir, newStateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, stateFile)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s has no %s, so it is not a cluster's folder; it is left as it is", dir, stateFile)
	}
	for _, entry := range entries {
		if entry.Name() != stateFile {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}
