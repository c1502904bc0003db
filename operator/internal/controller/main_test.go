package controller

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/go-logr/logr"
)

// cluster is a real kube-apiserver with its etcd and no other components, so the tests simulate scheduler and kubelet
// (kubelet_test.go).
var cluster *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	// The tests mostly wait, so many run in parallel whatever the number of cores.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	folder, err := assets()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	env := &envtest.Environment{BinaryAssetsDirectory: folder, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: wait, ControlPlaneStopTimeout: wait,
		CRDDirectoryPaths: []string{filepath.Join(root(), "charts", "tangram", "crds")}}
	// Each world has two Services, and a test's objects stay until the end: the default range has only 254 addresses.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "172.30.0.0/16")
	if cluster, err = env.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start kube-apiserver from", folder, ":", errors.Join(err, env.Stop()))
		return 1
	}
	cluster.QPS, cluster.Burst = 500, 1000
	var r *witness
	if os.Getenv("TANGRAM_RECORD") != "" {
		if r, err = watchAll(); err != nil {
			fmt.Fprintln(os.Stderr, "record:", errors.Join(err, env.Stop()))
			return 1
		}
	}
	code := m.Run()
	if r != nil {
		if err := r.write(); err != nil {
			fmt.Fprintln(os.Stderr, "record:", err)
			code = max(code, 1)
		}
	}
	if err := env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop kube-apiserver:", err)
		code = max(code, 1)
	}
	return code
}

// root is the root folder of the repository.
func root() string {
	folder, err := filepath.Abs(filepath.Join("..", "..", "..")) // relative to go test's folder
	if err != nil {
		panic(err)
	}
	return folder
}

// assets is a folder with etcd, kube-apiserver and kubectl: KUBEBUILDER_ASSETS, or links to build/bin/kube, which
// dispatches on its name.
func assets() (string, error) {
	if folder := os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder, nil
	}
	if _, err := os.Stat(filepath.Join(root(), "build", "bin", "kube")); err != nil {
		return "", fmt.Errorf("no Kubernetes binary to test with: run `make kube`, or set KUBEBUILDER_ASSETS: %w", err)
	}
	folder := filepath.Join(root(), "build", "envtest")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.Symlink(filepath.Join("..", "bin", "kube"), filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return folder, nil
}
