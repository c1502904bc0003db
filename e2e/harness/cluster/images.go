package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const imageTag = "dev"

// image describes an image of programs, each at /bin/<its name>; the first is the entry point.
type image struct {
	name     string   // agent: tangram.dev/agent:dev
	programs []string // paths under the repository
	files    []string // likewise, each at /share/<its name>
}

// paceTable has the duration of steps on accelerators, for paced engines (docs/telemetry.md).
const paceTable = "build/images/pace.json"

var images = []image{
	// The hook is copied into containers of any image, so it is a static program in the agent's image.
	{name: "agent", programs: []string{"build/cxx/agent/server/tangram-agent", "build/cxx/agent/server/tangram-hook"}},
	{name: "engine", programs: []string{"build/cxx/e2e/engine/tangram-engine"}, files: []string{paceTable}},
	{name: "operator", programs: []string{"build/images/bin/tangram-operator"}},
	{name: "gateway", programs: []string{"build/images/bin/tangram-gateway"}},
}

// Images returns the archives of all images under build/images, and assembles those whose programs changed.
func Images(ctx context.Context, o Options) ([]string, error) {
	if err := o.absolute(); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.Root, "build/images")
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o750); err != nil {
		return nil, err
	}
	// Static programs, so that their images contain nothing else.
	if err := o.runIn(ctx, filepath.Join(o.Root, "operator"), []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags=-s -w",
		"-o", filepath.Join(dir, "bin")+"/", "./cmd/tangram-operator", "./cmd/tangram-gateway"); err != nil {
		return nil, err
	}
	if err := writePaceTable(ctx, o); err != nil {
		return nil, err
	}
	var archives []string
	for _, i := range images {
		archive := filepath.Join(dir, i.name+".tar")
		archives = append(archives, archive)
		args := []string{"build-image", "--name", "tangram.dev/" + i.name + ":" + imageTag, "--out", archive, "--user", "65532",
			"--entrypoint", "/bin/" + filepath.Base(i.programs[0])}
		inputs := []string{o.tool("tangram-cluster")} // the program that assembles them
		for _, p := range i.programs {
			program := filepath.Join(o.Root, p)
			inputs, args = append(inputs, program), append(args, program+":/bin/"+filepath.Base(p))
		}
		for _, p := range i.files {
			file := filepath.Join(o.Root, p)
			inputs, args = append(inputs, file), append(args, file+":/share/"+filepath.Base(p))
		}
		sum, err := fingerprint(inputs...)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w (built by `make build`)", i.name, err)
		}
		if current(archive, sum) {
			continue
		}
		o.Say("image %s", i.name)
		if err := o.run(ctx, o.tool("tangram-cluster"), args...); err != nil {
			return nil, err
		}
		// Written last, so that an interrupted archive is assembled again.
		if err := os.WriteFile(archive+".inputs", []byte(sum), 0o600); err != nil {
			return nil, err
		}
	}
	return archives, nil
}

// writePaceTable writes the table with the CLI, like a user.
func writePaceTable(ctx context.Context, o Options) error {
	table, err := exec.CommandContext(ctx, o.tool("tangram"), "pace-table", "-", "--model", "Qwen3-30B-A3B", "--engine", "trtllm", "--ranks", "6").Output()
	if err != nil {
		return fmt.Errorf("tangram pace-table: %w", err)
	}
	return os.WriteFile(filepath.Join(o.Root, paceTable), table, 0o644) //nolint:gosec // pods do not run as root
}

// current reports whether the archive exists and was made from these inputs.
func current(archive, inputs string) bool {
	made, err := os.ReadFile(archive + ".inputs")
	if err != nil || string(made) != inputs {
		return false
	}
	_, err = os.Stat(archive)
	return err == nil
}

// fingerprint hashes the contents of the files.
func fingerprint(paths ...string) (string, error) {
	var sums []string
	for _, path := range paths {
		sum, err := sha256File(path)
		if err != nil {
			return "", err
		}
		sums = append(sums, sum)
	}
	return strings.Join(sums, "\n"), nil
}

func sha256File(path string) (sum string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
