// Package apiserver starts a real kube-apiserver with its etcd, for tests that query it. The programs are links to the
// multi-call Kubernetes binary build/bin/kube.
package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Server is a running control plane without scheduler, controllers and kubelet.
type Server struct {
	// Config is an administrator's.
	Config *rest.Config

	env        *envtest.Environment
	folder     string
	kubeconfig string
}

// Root returns the repository's root for any test: programs are built with -trimpath and do not know their source
// folder.
func Root() string {
	start, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for folder := start; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "Makefile")); err == nil {
			return folder
		}
		if folder == filepath.Dir(folder) {
			panic("no Makefile in any folder above " + start)
		}
	}
}

// Start starts a server and, if crds is true, installs the chart's CustomResourceDefinitions in it
// and waits until they are served. The caller must Stop it.
func Start(crds bool) (*Server, error) {
	assets, err := assets()
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{BinaryAssetsDirectory: assets}
	if crds {
		env.CRDDirectoryPaths = []string{filepath.Join(Root(), "charts", "tangram", "crds")}
		env.ErrorIfCRDPathMissing = true
	}
	config, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("start kube-apiserver from %s: %w", assets, errors.Join(err, env.Stop()))
	}
	server := &Server{Config: config, env: env}
	if err := server.writeKubeconfig(); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

// Stop ends the processes and removes their files.
func (s *Server) Stop() error {
	return errors.Join(s.env.Stop(), os.RemoveAll(s.folder))
}

// Kubeconfig is the path of an administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Kubectl runs kubectl as an administrator. The error has kubectl's stderr.
func (s *Server) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	kubectl := filepath.Join(s.env.ControlPlane.APIServer.Path, "..", "kubectl")
	command := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	// kubectl caches discovery in its home; a later server may have the same address and other contents.
	command.Env = append(os.Environ(), "HOME="+s.folder, "KUBECACHEDIR="+s.folder)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Main runs the tests of a package against one server, kept in *server while they run.
func Main(m *testing.M, server **Server) int {
	started, err := Start(true)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*server = started
	code := m.Run()
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop kube-apiserver:", err)
		code = max(code, 1)
	}
	return code
}

func (s *Server) writeKubeconfig() error {
	user, err := s.env.ControlPlane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return fmt.Errorf("add an administrator: %w", err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return fmt.Errorf("make a kubeconfig: %w", err)
	}
	if s.folder, err = os.MkdirTemp("", "tangram-apiserver-"); err != nil {
		return err
	}
	s.kubeconfig = filepath.Join(s.folder, "kubeconfig")
	return os.WriteFile(s.kubeconfig, kubeconfig, 0o600)
}

// assets returns a folder with etcd, kube-apiserver and kubectl: KUBEBUILDER_ASSETS, or links to build/bin/kube, made
// here if missing.
func assets() (string, error) {
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder, nil
	}
	kube := filepath.Join(Root(), "build", "bin", "kube")
	if _, err := os.Stat(kube); err != nil {
		return "", fmt.Errorf("no Kubernetes binary to test with: build %s, or set KUBEBUILDER_ASSETS: %w", kube, err)
	}
	folder := filepath.Join(Root(), "build", "envtest")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		err := os.Symlink(filepath.Join("..", "bin", "kube"), filepath.Join(folder, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return folder, nil
}
