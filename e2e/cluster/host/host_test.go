package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const wait = 4 * time.Minute // only a hang reaches this limit

func TestParseSupervisor(t *testing.T) {
	for _, test := range []struct {
		args []string
		ok   bool
	}{
		{append([]string{"/x/bin/tangram-cluster"}, SupervisorArgs("/c", "n1")...), true},
		{append([]string{"tangram-cluster"}, SupervisorArgs("/c d", "cp")...), true},
		{append([]string{"vim"}, SupervisorArgs("/c", "n1")...), false},
		{[]string{"tangram-cluster", "down", "--dir", "/c", "--name", "n1"}, false},
		{[]string{"tangram-cluster", "machine", "--name", "n1", "--dir", "/c"}, false},
		{append([]string{"tangram-cluster"}, append(SupervisorArgs("/c", "n1"), "more")...), false},
		{[]string{"tangram-cluster", "machine"}, false},
		{nil, false},
	} {
		dir, name, ok := ParseSupervisor(test.args)
		require.Equal(t, test.ok, ok, "%q", test.args)
		if ok {
			require.Equal(t, test.args[3], dir)
			require.Equal(t, test.args[5], name)
		}
	}
}

func TestSysctlsRestore(t *testing.T) {
	root := t.TempDir()
	write := func(name, value string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(value+"\n"), 0o600))
	}
	write("vm/overcommit_memory", "0")
	write("kernel/panic", "0")
	write("kernel/panic_on_oops", "1")
	write("kernel/keys/root_maxkeys", "200")
	before, err := readSysctls(root)
	require.NoError(t, err)
	require.Equal(t, Sysctls{"vm/overcommit_memory": "0", "kernel/panic": "0", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "200"}, before,
		"those that a kernel lacks are left out")
	write("vm/overcommit_memory", "1")           // by the kubelet
	write("kernel/keys/root_maxkeys", "1000000") // by the kubelet
	write("kernel/panic", "60")                  // by the administrator, in the meantime
	require.NoError(t, before.restore(root))
	require.NoError(t, before.restore(root), "a second time")
	after, err := readSysctls(root)
	require.NoError(t, err)
	require.Equal(t, Sysctls{"vm/overcommit_memory": "0", "kernel/panic": "60", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "200"}, after)
}

func mountOf(dir, fstype, options string) *mountinfo.Info {
	return &mountinfo.Info{Mountpoint: dir, FSType: fstype, VFSOptions: options}
}

func TestCgroupsV1(t *testing.T) {
	root := t.TempDir()
	var mounts []*mountinfo.Info
	for _, name := range []string{"cpu,cpuacct", "cpuset", "memory", "pids", "devices", "blkio", "systemd", "unified"} {
		dir := filepath.Join(root, name)
		require.NoError(t, os.Mkdir(dir, 0o750))
		mounts = append(mounts, mountOf(dir, "cgroup", "rw,"+name))
	}
	mounts[7].FSType = "cgroup2"
	require.NoError(t, os.WriteFile(filepath.Join(root, "unified/cgroup.controllers"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "cpuset/cpuset.cpus"), []byte("0-3\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "cpuset/cpuset.mems"), []byte("0\n"), 0o600))
	groups, err := cgroupsOf(mounts)
	require.NoError(t, err)
	require.False(t, groups.V2, "v2 without controllers beside v1 does not count")
	require.Equal(t, []string{"control groups v1: controller freezer is not there"}, groups.Missing())

	require.NoError(t, groups.Prepare("n1"))
	require.NoError(t, groups.Prepare("n1"), "a second time")
	for _, name := range []string{"cpu,cpuacct", "cpuset", "memory", "systemd"} {
		require.DirExists(t, filepath.Join(root, name, "tangram-n1"))
	}
	require.NoError(t, groups.Adopt("n1", false, 123))
	require.NoError(t, groups.Prepare("cp"))
	require.NoError(t, groups.Adopt("cp", true, 124))
	for file, want := range map[string]string{"n1/supervisor/cpu.shares": "256", "n1/supervisor/cgroup.procs": "123",
		"cp/cpu.shares": "256", "cp/supervisor/cgroup.procs": "124"} {
		path := filepath.Join(root, "cpu,cpuacct/tangram-"+file)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		require.NoError(t, os.Remove(path)) // as below
	}
	require.NoDirExists(t, filepath.Join(root, "memory/tangram-n1/supervisor"), "only processors")
	cpus, err := os.ReadFile(filepath.Join(root, "cpuset/tangram-n1/cpuset.cpus"))
	require.NoError(t, err)
	require.Equal(t, "0-3\n", string(cpus))
	// In a real hierarchy these files disappear with their folder.
	for _, machine := range []string{"n1", "cp"} {
		require.NoError(t, os.Remove(filepath.Join(root, "cpuset/tangram-"+machine+"/cpuset.cpus")))
		require.NoError(t, os.Remove(filepath.Join(root, "cpuset/tangram-"+machine+"/cpuset.mems")))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "memory/tangram-n1/kubepods/burstable/pod1/container"), 0o750))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "unified/tangram-n2/kubepods"), 0o750))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "memory/tangram-other"), 0o750))
	require.NoError(t, groups.Remove(t.Context()))
	require.NoError(t, groups.Remove(t.Context()), "a second time")
	left, err := filepath.Glob(filepath.Join(root, "*/tangram-*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(root, "memory/tangram-other")}, left)
}

func TestCgroupsV2(t *testing.T) {
	root := t.TempDir()
	control := filepath.Join(root, "cgroup.subtree_control")
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu io memory\n"), 0o600))
	require.NoError(t, os.WriteFile(control, []byte("cpu memory\n"), 0o600))
	groups, err := cgroupsOf([]*mountinfo.Info{mountOf(root, "cgroup2", "rw")})
	require.NoError(t, err)
	require.True(t, groups.V2)
	require.Equal(t, []string{"control groups v2: controller pids is not there"}, groups.Missing())
	disabled, err := groups.Disabled()
	require.NoError(t, err)
	require.Equal(t, []string{"cpuset", "pids"}, disabled)
	read := func() string {
		text, err := os.ReadFile(control)
		require.NoError(t, err)
		return string(text)
	}
	require.NoError(t, groups.Enable(disabled))
	require.Equal(t, "+cpuset +pids", read())
	require.NoError(t, groups.Disable(disabled))
	require.Equal(t, "-cpuset -pids", read())
	require.NoError(t, os.Mkdir(filepath.Join(root, "tangram-n1"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(root, "tangram-n1/cgroup.subtree_control"), nil, 0o600))
	require.NoError(t, groups.Prepare("n1"))
	require.NoError(t, groups.Adopt("n1", false, 123))
	weight, err := os.ReadFile(filepath.Join(root, "tangram-n1/supervisor/cpu.weight"))
	require.NoError(t, err)
	require.Equal(t, "25", string(weight))
	text, err := os.ReadFile(filepath.Join(root, "tangram-n1/supervisor/cgroup.procs"))
	require.NoError(t, err)
	require.Equal(t, "123", string(text))
}

func TestNoCgroups(t *testing.T) {
	groups, err := cgroupsOf(nil)
	require.NoError(t, err)
	require.Len(t, groups.Missing(), 1)
}

// Kill must not affect a process that has a supervisor's former PID.
func TestKillSparesReusedPID(t *testing.T) {
	command := exec.CommandContext(t.Context(), "sleep", "3600")
	require.NoError(t, command.Start())
	require.Eventually(t, func() bool { // the kernel shows its arguments a moment after its start
		p, err := process(command.Process.Pid)
		return err == nil && len(p.Args) > 0
	}, wait, time.Millisecond)
	require.NoError(t, Supervisor{PID: command.Process.Pid, Dir: "/c", Name: "n1"}.Kill(t.Context(), 0))
	p, err := process(command.Process.Pid)
	require.NoError(t, err)
	require.NotEqual(t, byte('Z'), p.State)
	require.Equal(t, []string{"sleep", "3600"}, p.Args)
	require.NoError(t, command.Process.Kill())
	require.Error(t, command.Wait())
}

// Kill ends a supervisor with SIGTERM, and one that ignores SIGTERM with SIGKILL.
func TestKill(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	for deaf, c := range map[bool]struct {
		grace time.Duration
		by    syscall.Signal
	}{false: {wait, syscall.SIGTERM}, true: {50 * time.Millisecond, syscall.SIGKILL}} {
		command := exec.CommandContext(t.Context(), program)
		command.Args = append([]string{"tangram-cluster"}, SupervisorArgs("/c", "n1")...)
		command.Env = append(os.Environ(), "TANGRAM_TEST_SUPERVISOR="+strconv.FormatBool(deaf))
		stdout, err := command.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		_, err = stdout.Read(make([]byte, 1))
		require.NoError(t, err)
		s := Supervisor{PID: command.Process.Pid, Dir: "/c", Name: "n1"}
		all, err := Supervisors()
		require.NoError(t, err)
		require.Contains(t, all, s)
		require.NoError(t, s.Kill(t.Context(), c.grace))
		var ended *exec.ExitError
		require.ErrorAs(t, command.Wait(), &ended)
		status, ok := ended.Sys().(syscall.WaitStatus)
		require.True(t, ok)
		require.Equal(t, c.by, status.Signal())
	}
}

// Kill returns when the whole namespace has ended, not when its PID 1 has begun to end. Earlier, `down` on a busy
// machine removed control groups and sysctls that a kubelet then wrote again.
func TestKillWaitsForWholeNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as all of the cluster does")
	}
	program, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), program)
	command.Args = append([]string{"tangram-cluster"}, SupervisorArgs("/c", "n1")...)
	command.Env = append(os.Environ(), "TANGRAM_TEST_SUPERVISOR=parent")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	_, err = stdout.Read(make([]byte, 5))
	require.NoError(t, err)
	children := func() (n int) {
		all, err := Processes()
		require.NoError(t, err)
		for _, p := range all {
			if p.Parent == command.Process.Pid && p.State != 'Z' {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, children())
	require.NoError(t, Supervisor{PID: command.Process.Pid, Dir: "/c", Name: "n1"}.Kill(t.Context(), wait))
	require.Zero(t, children(), "what the supervisor had started")
	require.Error(t, command.Wait())
}

// slow has so much memory that the kernel needs time to end it.
func slow() {
	memory := make([]byte, 1<<30)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	_, _ = os.Stdout.WriteString("ready")
	time.Sleep(time.Hour)
	runtime.KeepAlive(memory)
}

// TestMain runs as a supervisor if a test starts this program as one.
func TestMain(m *testing.M) {
	if kind := os.Getenv("TANGRAM_TEST_SUPERVISOR"); kind != "" {
		switch kind {
		case "true": // ignores SIGTERM
			signal.Ignore(syscall.SIGTERM)
			_, _ = os.Stdout.WriteString("ready")
		case "slow":
			slow()
		case "parent": // like a supervisor, it ends at SIGTERM and leaves its children to the kernel
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, syscall.SIGTERM)
			program, _ := os.Executable()
			child := exec.Command(program)
			child.Env, child.Stdout = append(os.Environ(), "TANGRAM_TEST_SUPERVISOR=slow"), os.Stdout
			if child.Start() == nil {
				<-stop
			}
			os.Exit(1)
		default:
			_, _ = os.Stdout.WriteString("ready")
		}
		time.Sleep(time.Hour)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestLock(t *testing.T) {
	network := lockName
	lockName = "@tangram-cluster-test"
	t.Cleanup(func() { lockName = network })
	unlock, err := Lock(t.Context(), wait)
	require.NoError(t, err)
	_, err = Lock(t.Context(), 100*time.Millisecond)
	require.ErrorContains(t, err, "another tangram-cluster command is running")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Lock(ctx, time.Minute)
	require.Error(t, err)
	unlock()
	unlock, err = Lock(t.Context(), wait)
	require.NoError(t, err)
	unlock()
}

// TestLinks_WhenChangedDuringRead adds and removes links continuously; a list is complete or read again. Earlier, a
// `down` at that moment failed half-way.
func TestLinks_WhenChangedDuringRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as all of the cluster does")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	here, err := os.Open("/proc/thread-self/ns/net")
	require.NoError(t, err)
	defer func() { _ = here.Close() }()
	const links = 100 // a list of several messages
	for i := range links {
		require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("d%d", i)}}))
	}
	ctx, stop := context.WithCancel(t.Context())
	var churn errgroup.Group
	churn.Go(func() error {
		runtime.LockOSThread()
		if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		for i := 0; ctx.Err() == nil; i++ {
			link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("c%d", i)}}
			if err := errors.Join(netlink.LinkAdd(link), netlink.LinkDel(link)); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond) // so that a list is read between two changes
		}
		return nil
	})
	plain := 0 // lists that the kernel reported as incomplete
	deadline := time.Now().Add(wait)
	for plain == 0 && time.Now().Before(deadline) {
		for range 100 {
			if _, err := netlink.LinkList(); errors.Is(err, netlink.ErrDumpInterrupted) {
				plain++
			}
			all, err := Links()
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(all), links)
		}
	}
	stop()
	require.NoError(t, churn.Wait())
	require.Positive(t, plain, "no list was interrupted, so this tests nothing")
}
