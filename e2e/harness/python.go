package harness

import (
	"path/filepath"
	"strings"
)

// PythonEngine returns an Options.Engine in Python: `run` in the virtual environment build/VENV, with the packages of
// the kit, the client and `packages` (folders of the repository), and our libraries. o.Root must be absolute.
func (o *Options) PythonEngine(venv string, packages []string, run ...string) []string {
	return append(append(o.KitEnvironment(packages...), filepath.Join(o.Root, "build", venv, "bin/python")), run...)
}

// KitEnvironment returns a command that runs its arguments in the repository's root with the kit's libraries and, for
// Python, the packages of the kit, the client and `packages`. o.Root must be absolute.
func (o *Options) KitEnvironment(packages ...string) []string {
	var path []string
	for _, folder := range append(packages, "agent/engine/python", "agent/client/python") {
		path = append(path, filepath.Join(o.Root, folder))
	}
	return []string{"env", "-C", o.Root, "TANGRAM_CLIENT_LIBRARY=" + o.cxx("agent/engine/libtangram_engine.so"),
		"TANGRAM_EXPERTS_LIBRARY=" + o.cxx("agent/vllm/ops/libtangram_experts.so"), "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1",
		"PYTHONPATH=" + strings.Join(path, ":")}
}

// VLLM selects the engines of agent/vllm: one EngineCore of vLLM per rank, forked by a process that has done its
// imports. o.Root must be absolute.
func (o *Options) VLLM() {
	o.Engine, o.Forked = o.PythonEngine("vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.zygote"), true
}
