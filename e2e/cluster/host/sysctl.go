package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tunables are the sysctls that the kubelet sets for the whole machine at its start, with its values.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// Sysctls has values by path under /proc/sys.
type Sysctls map[string]string

// procSys is the real folder; tests use another one.
const procSys = "/proc/sys"

// ReadSysctls returns the values that the kubelet changes; a kernel may lack some of them.
func ReadSysctls() (Sysctls, error) { return readSysctls(procSys) }

func readSysctls(root string) (Sysctls, error) {
	values := Sysctls{}
	for name := range tunables {
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("sysctl %s: %w", name, err)
		}
		values[name] = strings.TrimSpace(string(text))
	}
	return values, nil
}

// Restore restores the values that the kubelet changed. Any other value was set by another program, and stays.
func (s Sysctls) Restore() error { return s.restore(procSys) }

func (s Sysctls) restore(root string) error {
	now, err := readSysctls(root)
	if err != nil {
		return err
	}
	for name, before := range s {
		set, known := tunables[name]
		if !known || now[name] == before || now[name] != set {
			continue
		}
		if e := os.WriteFile(filepath.Join(root, name), []byte(before+"\n"), 0); e != nil {
			err = errors.Join(err, fmt.Errorf("sysctl %s back to %s: %w", name, before, e))
		}
	}
	return err
}
