package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// RecordingDriver is the library that plays a GPU's driver on this machine (agent/device/testing), for Options.CudaDriver.
func RecordingDriver(root string) (string, error) {
	o := Options{Root: root}
	return filepath.Abs(o.cxx("agent/device/libfakecuda.so"))
}

// FailCuda has calls of the driver fail in a process that is called so ("agent-p0", "engine-p0-0"): `times` calls of an entry point from now on, after
// `skip` others, with a CUresult.
func (w *World) FailCuda(process, call string, result, skip, times int) error {
	return writeWhole(w.faultsFile(process), fmt.Appendf(nil, "%s %d %d %d\n", call, result, skip, times))
}

func (w *World) faultsFile(process string) string {
	return filepath.Join(w.o.Dir, process+".cuda-faults")
}

// cudaFiles are what a process gets into its environment: where the recording driver tells of it, and is told to fail.
func (w *World) cudaFiles(name string) []string {
	if w.o.CudaDriver == "" {
		return nil
	}
	return []string{"FAKE_CUDA_REPORT=" + filepath.Join(w.o.Dir, name+cudaReport), "FAKE_CUDA_FAULTS=" + w.faultsFile(name),
		fmt.Sprint("FAKE_CUDA_GRANULARITY=", w.o.PageBytes)}
}

const cudaReport = ".cuda"

// CudaReports are what the recording driver told of each process of the pods, by name: "refused ..." for each call that
// was wrong, and a last line when it ended, which one that was killed has not: "ended", or "leaked ...". Those that came
// one after another under a name are one after another.
func (w *World) CudaReports() (map[string][]string, error) {
	files, err := filepath.Glob(filepath.Join(w.o.Dir, "*"+cudaReport))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, file := range files {
		wire, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		out[strings.TrimSuffix(filepath.Base(file), cudaReport)] = strings.Split(strings.TrimSpace(string(wire)), "\n")
	}
	return out, nil
}
