package harness

import (
	"path/filepath"
	"strings"
)

// PythonEngine is Options.Engine of an engine in Python: `run` in the virtual environment build/VENV, with the kit's and the client's packages, those of
// `packages` (folders of the repository), and our libraries. o.Root must be absolute.
func (o *Options) PythonEngine(venv string, packages []string, run ...string) []string {
	return append(append(o.KitEnvironment(packages...), filepath.Join(o.Root, "build", venv, "bin/python")), run...)
}

// KitEnvironment is a command that runs what follows in the repository's root, where it finds the kit's libraries and, if it is of Python, the kit's and the
// client's packages and those of `packages`. o.Root must be absolute.
func (o *Options) KitEnvironment(packages ...string) []string {
	var path []string
	for _, folder := range append(packages, "agent/engine/python", "agent/client/python") {
		path = append(path, filepath.Join(o.Root, folder))
	}
	return []string{"env", "-C", o.Root, "TANGRAM_CLIENT_LIBRARY=" + o.cxx("agent/engine/libtangram_engine.so"),
		"TANGRAM_EXPERTS_LIBRARY=" + o.cxx("agent/vllm/ops/libtangram_experts.so"), "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1",
		"PYTHONPATH=" + strings.Join(path, ":")}
}

// VLLM makes the engines agent/vllm's: one EngineCore of vLLM for each rank, forked by a process that has done its imports. o.Root must be absolute.
func (o *Options) VLLM() {
	o.Engine, o.Forked = o.PythonEngine("vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.zygote"), true
}
