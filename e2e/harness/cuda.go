package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// RecordingDriver returns the path of a library that simulates a GPU's driver (agent/device/testing), for
// Options.CudaDriver.
func RecordingDriver(root string) (string, error) {
	o := Options{Root: root}
	return filepath.Abs(o.cxx("agent/device/libfakecuda.so"))
}

// FailCuda makes driver calls fail in the process with this name ("agent-p0", "engine-p0-0"): after `skip` calls of an
// entry point from now on, the next `times` calls return `result`, a CUresult.
func (w *World) FailCuda(process, call string, result, skip, times int) error {
	return writeWhole(w.faultsFile(process), fmt.Appendf(nil, "%s %d %d %d\n", call, result, skip, times))
}

func (w *World) faultsFile(process string) string {
	return filepath.Join(w.o.Dir, process+".cuda-faults")
}

// cudaFiles are environment variables of a process: the recording driver's report file and faults file.
func (w *World) cudaFiles(name string) []string {
	if w.o.CudaDriver == "" {
		return nil
	}
	return []string{"FAKE_CUDA_REPORT=" + filepath.Join(w.o.Dir, name+cudaReport), "FAKE_CUDA_FAULTS=" + w.faultsFile(name),
		fmt.Sprint("FAKE_CUDA_GRANULARITY=", w.o.PageBytes)}
}

const cudaReport = ".cuda"

// CudaReports returns the recording driver's reports by name of the pods' processes: "refused ..." for each wrong call,
// and at the end of a process that was not killed "ended" or "leaked ...". Reports of successive processes of one name
// are concatenated.
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
