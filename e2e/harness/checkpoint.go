package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Checkpoint gives the folder of a preset of e2e/model/make_checkpoint.py under root, and
// makes it if it is not there yet: aside first, so that nobody sees half of one.
func Checkpoint(ctx context.Context, root, preset string) (string, error) {
	dir := filepath.Join(root, "build/models", preset)
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), preset+".part")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(part) }() // gone already when all went well
	cmd := exec.CommandContext(ctx, filepath.Join(root, "build/venv/bin/python"), filepath.Join(root, "e2e/model/make_checkpoint.py"),
		"--preset", preset, "--out", part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the %s checkpoint (set up by `make setup`): %w: %s", preset, err, out)
	}
	return dir, os.Rename(part, dir)
}
