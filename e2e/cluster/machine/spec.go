// Package machine is one machine of a cluster, from within its namespaces.
package machine

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// The cluster's networks. Nothing of them exists outside the host.
const (
	HostAddress    = "10.211.0.1"
	ControlAddress = "10.211.0.10"
	MachineNetwork = "10.211.0.0/24"
	PodNetwork     = "10.212.0.0/16"
	ServiceNetwork = "10.96.0.0/16"
	FirstService   = "10.96.0.1" // the service `kubernetes`
)

const (
	// ControlName of the control plane's machine.
	ControlName = "cp"
	// PauseImage of the pods' sandboxes.
	PauseImage = "tangram.dev/pause:1"
	// MaxNodes whose addresses fit beside the control plane's.
	MaxNodes = 50

	apiserverPort  = 6443
	specFile       = "machine.json"
	containerdSock = "/run/containerd/tangram.sock" // the host may have a containerd.sock of its own
)

// Spec of a machine, in DIR/NAME/machine.json.
type Spec struct {
	Name  string `json:"name"`  // cp, n1, n2, ...
	Index int    `json:"index"` // 0: control plane; i: node i
	Nodes int    `json:"nodes"` // of the cluster
	Dir   string `json:"dir"`   // of the cluster, absolute
	Kube  string `json:"kube"`  // the multi-call binary
	Deb   string `json:"deb"`   // root of the unpacked Debian packages
	// ReservedMemory (bytes) that the node holds back from pods.
	ReservedMemory int64 `json:"reservedMemory,omitempty"`
}

// NodeName of node i, from 1.
func NodeName(i int) string { return fmt.Sprintf("n%d", i) }

// NodeAddress of node i on the bridge.
func NodeAddress(i int) string { return fmt.Sprintf("10.211.0.%d", 10+i) }

// PodSubnet of node i.
func PodSubnet(i int) string { return fmt.Sprintf("10.212.%d.0/24", i) }

// Server is the URL of the apiserver.
func Server() string { return fmt.Sprintf("https://%s:%d", ControlAddress, apiserverPort) }

// Control says whether it is the control plane.
func (s *Spec) Control() bool { return s.Index == 0 }

// Address on the bridge.
func (s *Spec) Address() string {
	if s.Control() {
		return ControlAddress
	}
	return NodeAddress(s.Index)
}

// Home is the machine's own folder.
func (s *Spec) Home() string { return filepath.Join(s.Dir, s.Name) }

// Logs is the folder of its components' logs.
func (s *Spec) Logs() string { return filepath.Join(s.Dir, "logs", s.Name) }

// PKI is the folder of the cluster's keys and certificates.
func (s *Spec) PKI() string { return filepath.Join(s.Dir, "pki") }

// Write the spec to its place.
func (s *Spec) Write() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	for _, dir := range []string{s.Home(), s.Logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // pods of any user pass through
			return err
		}
	}
	return os.WriteFile(filepath.Join(s.Home(), specFile), text, 0o600)
}

// ReadSpec of a machine of the cluster in dir.
func ReadSpec(dir, name string) (*Spec, error) {
	text, err := os.ReadFile(filepath.Join(dir, name, specFile))
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	spec := &Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("machine %s: %s: %w", name, specFile, err)
	}
	return spec, nil
}

// Network of a constant.
func Network(cidr string) *net.IPNet {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return network
}

// ContainerdAddress of a node whose supervisor has this PID, as the host sees it. By way of the
// process, it is short whatever the cluster's folder is called: a socket's path has 107 bytes.
func ContainerdAddress(pid int) string { return fmt.Sprintf("/proc/%d/root%s", pid, containerdSock) }
