// Package machine runs one machine of a cluster, inside its namespaces.
package machine

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// The cluster's networks. They do not exist outside the host.
const (
	HostAddress    = "10.211.0.1"
	ControlAddress = "10.211.0.10"
	MachineNetwork = "10.211.0.0/24"
	PodNetwork     = "10.212.0.0/16"
	ServiceNetwork = "10.96.0.0/16"
	FirstService   = "10.96.0.1" // the address of service `kubernetes`
)

const (
	// ControlName is the control plane's machine.
	ControlName = "cp"
	// PauseImage is the image of the pods' sandboxes.
	PauseImage = "tangram.dev/pause:1"
	// MaxNodes is the number of nodes whose addresses fit next to the control plane's.
	MaxNodes = 50

	apiserverPort  = 6443
	specFile       = "machine.json"
	containerdSock = "/run/containerd/tangram.sock" // the host may have its own containerd.sock
)

// Spec describes a machine, in DIR/NAME/machine.json.
type Spec struct {
	Name  string `json:"name"`  // cp, n1, n2, ...
	Index int    `json:"index"` // 0: control plane; i: node i
	Nodes int    `json:"nodes"` // of the cluster
	Dir   string `json:"dir"`   // of the cluster, absolute
	Kube  string `json:"kube"`  // the multi-call binary
	Deb   string `json:"deb"`   // root of the unpacked Debian packages
	// ReservedMemory (bytes) is not available to the node's pods.
	ReservedMemory int64 `json:"reservedMemory,omitempty"`
}

// NodeName is the name of node i, from 1.
func NodeName(i int) string { return fmt.Sprintf("n%d", i) }

// NodeAddress is the address of node i on the bridge.
func NodeAddress(i int) string { return fmt.Sprintf("10.211.0.%d", 10+i) }

// PodSubnet is the pods' network of node i.
func PodSubnet(i int) string { return fmt.Sprintf("10.212.%d.0/24", i) }

// Server is the URL of the apiserver.
func Server() string { return fmt.Sprintf("https://%s:%d", ControlAddress, apiserverPort) }

// Control reports whether it is the control plane.
func (s *Spec) Control() bool { return s.Index == 0 }

// Address is the machine's address on the bridge.
func (s *Spec) Address() string {
	if s.Control() {
		return ControlAddress
	}
	return NodeAddress(s.Index)
}

// Home is the machine's folder.
func (s *Spec) Home() string { return filepath.Join(s.Dir, s.Name) }

// Logs is the folder of its components' logs.
func (s *Spec) Logs() string { return filepath.Join(s.Dir, "logs", s.Name) }

// PKI is the folder of the cluster's keys and certificates.
func (s *Spec) PKI() string { return filepath.Join(s.Dir, "pki") }

// Write writes the spec to its file.
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

// ReadSpec reads the spec of a machine of the cluster in dir.
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

// Network parses a constant.
func Network(cidr string) *net.IPNet {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return network
}

// ContainerdAddress is the socket of a node's containerd for the host, given the supervisor's PID. The path through
// /proc is short for any cluster folder: a socket's path has at most 107 bytes.
func ContainerdAddress(pid int) string { return fmt.Sprintf("/proc/%d/root%s", pid, containerdSock) }
