package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tunables that the kubelet sets for the whole machine at its start, and to what.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// Sysctls by path under /proc/sys.
type Sysctls map[string]string

// procSys is another folder in tests.
const procSys = "/proc/sys"

// ReadSysctls gives the values of those that the kubelet changes; a kernel may lack some.
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

// Restore puts back what the kubelet changed. A value that is neither what it was nor what the
// kubelet sets is somebody else's wish, and stays.
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
