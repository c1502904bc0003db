package harness

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Checkpoint returns the folder of a preset of e2e/model/make_checkpoint.py under root, and makes it if it is missing.
// It is written under another name first, so no reader sees a partial checkpoint.
func Checkpoint(ctx context.Context, root, preset string) (string, error) {
	return made(ctx, root, preset, filepath.Join(root, "build/venv/bin/python"), filepath.Join(root, "e2e/model/make_checkpoint.py"), "--preset", preset)
}

// WithTokenizer returns the folder of a preset with the vocabulary of the tokenizer build/tokenizers/TOKENIZER.
func WithTokenizer(ctx context.Context, root, preset, tokenizer string) (string, error) {
	return made(ctx, root, preset+"-"+tokenizer, filepath.Join(root, "build/venv/bin/python"), filepath.Join(root, "e2e/model/make_checkpoint.py"),
		"--preset", preset, "--tokenizer", filepath.Join(root, "build/tokenizers", tokenizer))
}

// Scripted returns a folder of e2e/model/scripted.py with the tokenizer build/tokenizers/TOKENIZER, and the answers by
// their words. `scripts` are WORD=TEXT.
func Scripted(ctx context.Context, root, tokenizer string, scripts ...string) (dir string, answers map[string]string, err error) {
	args := []string{"--tokenizer", filepath.Join(root, "build/tokenizers", tokenizer)}
	for _, s := range scripts {
		args = append(args, "--script", s)
	}
	name := fmt.Sprintf("scripted-%s-%x", tokenizer, sha256.Sum256([]byte(strings.Join(scripts, "\x00"))))[:24+len(tokenizer)]
	dir, err = made(ctx, root, name, filepath.Join(root, "build/vllm/bin/python"), append([]string{filepath.Join(root, "e2e/model/scripted.py")}, args...)...)
	if err != nil {
		return "", nil, err
	}
	wire, err := os.ReadFile(filepath.Join(dir, "scripts.json"))
	if err != nil {
		return "", nil, err
	}
	return dir, answers, json.Unmarshal(wire, &answers)
}

// made runs a command that takes --out, unless its result build/models/NAME exists.
func made(ctx context.Context, root, name, command string, args ...string) (string, error) {
	dir := filepath.Join(root, "build/models", name)
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), name+".part")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(part) }() // already renamed after a success
	cmd := exec.CommandContext(ctx, command, append(args, "--out", part)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the %s checkpoint (set up by `make setup`, and of a script by `make vllm-setup`): %w: %s", name, err, out)
	}
	return dir, os.Rename(part, dir)
}
