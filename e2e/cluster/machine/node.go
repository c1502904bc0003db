package machine

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"tangram.dev/e2e/cluster/host"
)

//go:embed templates
var templates embed.FS

// deb returns a path in the unpacked packages.
func (s *Spec) deb(path string) string { return filepath.Join(s.Deb, path) }

// Libraries returns the library folders of the unpacked packages, for LD_LIBRARY_PATH.
func Libraries(deb string) string {
	var dirs []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(deb, pattern)) // fails only for a bad pattern
		dirs = append(dirs, found...)
	}
	return strings.Join(dirs, ":")
}

// config returns the path of a component's configuration.
func (s *Spec) config(name string) string { return filepath.Join(s.Home(), "config", name) }

// writeConfigs writes the configurations of a node's components from the templates.
func (s *Spec) writeConfigs() error {
	values := map[string]any{
		"Name": s.Name, "Address": s.Address(), "PodNetwork": PodNetwork, "PodSubnet": PodSubnet(s.Index), "Socket": containerdSock,
		"PauseImage": PauseImage, "Group": host.Group(s.Name), "ReservedMemory": s.ReservedMemory,
		"Home": s.Home(), "Config": s.config(""), "CNI": s.deb("usr/lib/cni"), "Runc": s.deb("usr/sbin/runc"), "PKI": s.PKI(),
	}
	if err := os.MkdirAll(s.config("cni"), 0o755); err != nil { //nolint:gosec // resolv.conf is mounted into pods
		return err
	}
	parsed, err := template.ParseFS(templates, "templates/*")
	if err != nil {
		return err
	}
	for name, at := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "proxy.yaml": "proxy.yaml",
		"resolv.conf": "resolv.conf", "bridge.conflist": "cni/10-bridge.conflist",
	} {
		var text strings.Builder
		if err := parsed.ExecuteTemplate(&text, name, values); err != nil {
			return fmt.Errorf("configuration %s: %w", name, err)
		}
		if err := os.WriteFile(s.config(at), []byte(text.String()), 0o644); err != nil { //nolint:gosec // resolv.conf is mounted into pods
			return err
		}
	}
	return nil
}

func (s *Spec) containerd() component {
	return component{name: "containerd", path: s.deb("usr/bin/containerd"), args: []string{"--config", s.config("containerd.toml")}}
}

func (s *Spec) kubelet() component {
	return component{name: "kubelet", path: s.Kube, args: []string{
		"--config=" + s.config("kubelet.yaml"), "--kubeconfig=" + filepath.Join(s.PKI(), s.Name+".kubeconfig"),
		"--hostname-override=" + s.Name, "--node-ip=" + s.Address(),
	}}
}

func (s *Spec) kubeProxy() component {
	return component{name: "kube-proxy", path: s.Kube, args: []string{"--config=" + s.config("proxy.yaml")}}
}
