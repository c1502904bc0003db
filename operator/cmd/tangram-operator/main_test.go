package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"tangram.dev/operator/internal/controller"
	"tangram.dev/operator/internal/custommetrics"
	"tangram.dev/operator/internal/pki"

	api "tangram.dev/api/v1alpha2"
)

// How long tests wait for a result, and how often they check.
const (
	wait = 4 * time.Minute // only a deadlock takes this long
	tick = 50 * time.Millisecond
)

// startServer starts a kube-apiserver, with its kubeconfig in KUBECONFIG. It authenticates itself to servers behind it.
func startServer(t *testing.T) client.Client {
	t.Helper()
	root := filepath.Join("..", "..", "..") // relative to the folder in which go test runs the test
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = t.TempDir()
		kube, err := filepath.Abs(filepath.Join(root, "build", "bin", "kube"))
		require.NoError(t, err)
		require.FileExists(t, kube, "build it, or set KUBEBUILDER_ASSETS")
		for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
			require.NoError(t, os.Symlink(kube, filepath.Join(assets, name)))
		}
	}
	env := &envtest.Environment{BinaryAssetsDirectory: assets, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: wait, ControlPlaneStopTimeout: wait,
		CRDDirectoryPaths: []string{filepath.Join(root, "charts", "tangram", "crds")}}
	front, err := pki.OpenFolder(t.TempDir(), "front-proxy")
	require.NoError(t, err)
	proves, err := front.Issue("driver", "driver", nil)
	require.NoError(t, err)
	env.ControlPlane.GetAPIServer().Configure().Set("requestheader-client-ca-file", proves.CA).Set("requestheader-allowed-names", "driver").
		Set("requestheader-username-headers", "X-Remote-User").Set("requestheader-group-headers", "X-Remote-Group").Set("requestheader-extra-headers-prefix", "X-Remote-Extra-").
		Set("proxy-client-cert-file", proves.Cert).Set("proxy-client-key-file", proves.Key)
	config, err := env.Start()
	t.Cleanup(func() { require.NoError(t, env.Stop()) })
	require.NoError(t, err)
	user, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	require.NoError(t, err)
	text, err := user.KubeConfig()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	t.Setenv("KUBECONFIG", path)
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(api.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme)))
	c, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	return c
}

// freePort returns a port that no other process takes until the test ends: a bound socket holds it. Go's listeners use
// SO_REUSEADDR, so this test can still listen on it.
func freePort(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*unix.SockaddrInet4).Port))
}

// account creates a service account and returns a token for it.
func account(t *testing.T, c client.Client, name string) string {
	t.Helper()
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	require.NoError(t, c.Create(t.Context(), a))
	token := &authenticationv1.TokenRequest{}
	require.NoError(t, c.SubResource("token").Create(t.Context(), a, token))
	return token.Status.Token
}

// get returns the body of a reply with status 200, or an error.
func get(ctx context.Context, url, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the certificate is of its own making
	reply, err := c.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, reply.Status)
	}
	return string(body), err
}

// The program leads, answers its probes, serves metrics, and releases its lease at the end.
func TestServe(t *testing.T) {
	c := startServer(t)
	f := flags{images: controller.Images{Agent: "agent:test", Engine: "engine:test", VLLM: "vllm:test", Gateway: "gateway:test", Operator: "operator:test"}, metrics: freePort(t), health: freePort(t), elect: true, ownNamespace: "default",
		custom: behindTheServer(t, c)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, f, slog.New(slog.DiscardHandler)) }()

	holder := func() string {
		lease := &coordinationv1.Lease{}
		if c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "tangram-operator"}, lease) != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	for _, path := range []string{"healthz", "readyz"} {
		require.Eventually(t, func() bool { _, err := get(t.Context(), "http://"+f.health+"/"+path, ""); return err == nil }, wait, tick, path)
	}
	require.Eventually(t, func() bool { return holder() != "" }, wait, tick, "it holds the lease")
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "default"}, Spec: api.MoEDeploymentSpec{Replicas: 2, Engine: api.Engine{Name: api.EngineReference},
		Model:  api.Model{Source: api.ModelSource{PersistentVolumeClaim: &api.ClaimSource{ClaimName: "models"}}},
		Memory: api.Memory{Weights: resource.MustParse("64Mi"), KVCache: resource.MustParse("16Mi")}}}
	require.NoError(t, c.Create(t.Context(), d))
	require.Eventually(t, func() bool {
		return c.Get(t.Context(), client.ObjectKeyFromObject(d), d) == nil && len(d.Status.Conditions) > 0
	}, wait, tick, "it reconciles")
	reader := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	require.NoError(t, c.Create(t.Context(), reader))
	require.NoError(t, c.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}}}))
	prometheus, stranger := account(t, c, "prometheus"), account(t, c, "stranger")
	_, err := get(t.Context(), "https://"+f.metrics+"/metrics", "")
	require.ErrorContains(t, err, "401")
	_, err = get(t.Context(), "https://"+f.metrics+"/metrics", "no-token")
	require.ErrorContains(t, err, "500", "refused as well: controller-runtime's answer to a token that nobody issued")
	_, err = get(t.Context(), "https://"+f.metrics+"/metrics", stranger)
	require.ErrorContains(t, err, "403")
	_, err = get(t.Context(), "http://"+f.metrics+"/metrics", prometheus)
	require.Error(t, err, "a token never goes in the clear")
	require.Eventually(t, func() bool {
		body, err := get(t.Context(), "https://"+f.metrics+"/metrics", prometheus)
		return err == nil && strings.Contains(body, `tangram_operator_world_desired_ranks{name="w",namespace="default"} 2`)
	}, wait, tick, "metrics of its own")
	customMetricsAreServed(t)
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	default:
	}
	stop()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(wait):
		t.Fatal("it does not end")
	}
	require.Empty(t, holder(), "the next one need not wait for the lease to run out")
}

// behindTheServer creates the chart's objects, so that the API server queries this process for custom metrics.
func behindTheServer(t *testing.T, c client.Client) customMetrics {
	t.Helper()
	out := customMetrics{address: freePort(t), service: "custom", secret: "custom"}
	_, port, err := net.SplitHostPort(out.address)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	at := metav1.ObjectMeta{Namespace: "default", Name: "custom"}
	require.NoError(t, c.Create(t.Context(), &corev1.Secret{ObjectMeta: at}))
	require.NoError(t, c.Create(t.Context(), &corev1.Service{ObjectMeta: at, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}))
	require.NoError(t, c.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": custommetrics.APIService},
		"spec": map[string]any{"group": "custom.metrics.k8s.io", "version": "v1beta2", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"service": map[string]any{"namespace": "default", "name": "custom", "port": int64(number)}}}}))
	return out
}

// customMetricsAreServed checks that the API server trusts this process and serves its metrics only if authorized.
func customMetricsAreServed(t *testing.T) {
	t.Helper()
	config, err := ctrl.GetConfig()
	require.NoError(t, err)
	const group = "/apis/custom.metrics.k8s.io/v1beta2"
	ask := func(user, path string) (string, error) {
		as := rest.CopyConfig(config)
		as.Impersonate.UserName = user
		c, err := kubernetes.NewForConfig(as)
		require.NoError(t, err)
		text, err := c.RESTClient().Get().AbsPath(path).Do(t.Context()).Raw()
		return string(text), err
	}
	const autoscaler, metric = "system:serviceaccount:kube-system:horizontal-pod-autoscaler", group + "/namespaces/default/moedeployments.serving.tangram.dev/w/tangram_operator_world_requests"
	require.Eventually(t, func() bool {
		text, err := ask("", group)
		return err == nil && strings.Contains(text, "moedeployments.serving.tangram.dev/tangram_operator_world_requests")
	}, wait, tick, "the API server lists them")
	text, err := ask(autoscaler, metric)
	require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	require.Contains(t, text, "MoEDeployment default/w: no gateway is running yet")
	_, err = ask(autoscaler, strings.Replace(metric, "/w/", "/none/", 1))
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = ask("system:serviceaccount:default:stranger", metric)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

func TestServeRejectsInvalidSettings(t *testing.T) {
	_, err := newLog("loud")
	require.ErrorContains(t, err, "--log-level")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, serve(t.Context(), flags{custom: customMetrics{address: "0"}}, slog.New(slog.DiscardHandler)), "no cluster configuration found")
	_, err = serveCustomMetrics(nil, flags{custom: customMetrics{address: ":1", service: "s", secret: "s"}}, nil, nil)
	require.ErrorContains(t, err, "--own-namespace is missing")
	for _, folder := range []string{"run/node", "/run/../etc", "/run/node/", "/"} {
		require.ErrorContains(t, serve(t.Context(), flags{nodeFolder: folder}, slog.New(slog.DiscardHandler)), "--node-folder")
	}
}
