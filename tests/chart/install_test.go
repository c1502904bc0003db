package chart_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tangram.dev/tests/internal/apiserver"
)

// newServer starts a server without our CRDs: Helm installs them.
func newServer(t *testing.T) (*apiserver.Server, client.Client) {
	t.Helper()
	server, err := apiserver.Start(false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	c, err := client.New(server.Config, client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	return server, c
}

// All steps of a user: install, apply the examples, upgrade, uninstall.
func TestInstall(t *testing.T) {
	server, c := newServer(t)
	helm := func(args ...string) string {
		out, err := program(t.Context(), "", "helm", append(args, "--kubeconfig", server.Kubeconfig(), "--namespace", "tangram-system")...)
		require.NoError(t, err)
		return out
	}
	notes := helm("install", "tangram", chart, "--create-namespace", "--set", "images.tag=dev")
	require.Contains(t, notes, "reconciles the MoEDeployments of all namespaces")
	require.Contains(t, notes, "kubectl -n tangram-system rollout status deployment/tangram-operator")

	// A user would also write the demo's manifests.
	_, err := server.Kubectl(t.Context(), "", "apply", "--dry-run=server", "--validate=strict", "-f", filepath.Join(apiserver.Root(), "e2e", "demo", "manifests"))
	require.NoError(t, err)

	for name, example := range examples(t) {
		_, err := server.Kubectl(t.Context(), example, "apply", "--server-side", "--validate=strict", "-f", "-")
		require.NoError(t, err, name)
	}
	out, err := server.Kubectl(t.Context(), "", "get", "moed", "demo", "-o", "jsonpath={.spec.replicas} {.spec.engine.name}")
	require.NoError(t, err)
	require.Equal(t, "4 reference", out)

	t.Run("rights in all namespaces", func(t *testing.T) {
		mayOnly(t, c, "system:serviceaccount:tangram-system:tangram-operator", "tangram-system", "default")
	})
	t.Run("restricted Pod Security", func(t *testing.T) { operatorRunsRestricted(t, c) })

	helm("upgrade", "tangram", chart, "--set", "replicas=2,watchNamespaces={default},rbac.aggregateToDefaultRoles=false")
	t.Run("rights in one namespace", func(t *testing.T) {
		const operator = "system:serviceaccount:tangram-system:tangram-operator"
		mayOnly(t, c, operator, "tangram-system", "default")
		require.False(t, may(t, c, operator, "get", "", "secrets", "kube-system"), "secrets of other namespaces")
		require.False(t, may(t, c, operator, "list", "", "pods", ""), "pods of all namespaces")
		// A Role in a namespace allows reading that namespace, whose labels the operator reads.
		as := rest.CopyConfig(server.Config)
		as.Impersonate.UserName = operator
		mine, err := client.New(as, client.Options{Scheme: clientgoscheme.Scheme})
		require.NoError(t, err)
		require.NoError(t, mine.Get(t.Context(), client.ObjectKey{Name: "default"}, &corev1.Namespace{}))
		require.True(t, apierrors.IsForbidden(mine.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})))
	})

	helm("uninstall", "tangram")
	err = c.Get(t.Context(), client.ObjectKey{Namespace: "tangram-system", Name: "tangram-operator"}, &appsv1.Deployment{})
	require.True(t, apierrors.IsNotFound(err), "the operator's Deployment is left: %v", err)
	out, err = server.Kubectl(t.Context(), "", "get", "moed", "demo", "-o", "name")
	require.NoError(t, err, "uninstalling the operator must not delete worlds")
	require.Contains(t, out, "demo")
}

// mayOnly queries the cluster's authorizer for the operator's rights in the world's namespace and its own.
func mayOnly(t *testing.T, c client.Client, operator, own, world string) {
	t.Helper()
	for _, right := range []string{
		"get serving.tangram.dev moedeployments", "watch serving.tangram.dev moedeployments",
		"patch serving.tangram.dev moedeployments/status", "create serving.tangram.dev layouttransitions",
		"delete serving.tangram.dev layouttransitions", "create  pods", "delete  pods", "create  secrets", "patch  configmaps",
		"get  namespaces", "patch  services", "patch  serviceaccounts", "patch apps deployments", "patch networking.k8s.io networkpolicies", "create events.k8s.io events",
		"create resource.k8s.io resourceclaimtemplates",
	} {
		word := strings.Split(right, " ")
		require.True(t, may(t, c, operator, word[0], word[1], word[2], world), "must be allowed: %s", right)
	}
	require.True(t, may(t, c, operator, "list", "", "nodes", ""), "nodes must be readable")
	require.True(t, may(t, c, operator, "create", "authentication.k8s.io", "tokenreviews", ""), "who asks for metrics")
	require.True(t, may(t, c, operator, "update", "coordination.k8s.io", "leases", own), "its lease must be its own")

	for _, right := range []string{
		"create  pods/exec", "create  pods/eviction", "create  serviceaccounts/token", "create  persistentvolumeclaims",
		"create serving.tangram.dev moedeployments", "delete serving.tangram.dev moedeployments",
		"update coordination.k8s.io leases", "create rbac.authorization.k8s.io rolebindings", "create batch jobs", "create resource.k8s.io resourceclaims", "delete  namespaces", "patch  namespaces", "list  namespaces",
	} {
		word := strings.Split(right, " ")
		require.False(t, may(t, c, operator, word[0], word[1], word[2], world), "must be refused: %s", right)
	}
	for _, right := range []string{"delete  nodes", "patch  nodes", "create rbac.authorization.k8s.io clusterroles", "create  namespaces"} {
		word := strings.Split(right, " ")
		require.False(t, may(t, c, operator, word[0], word[1], word[2], ""), "must be refused: %s", right)
	}
}

// may queries the authorizer whether user has a right; no namespace: in all of them.
func may(t *testing.T, c client.Client, user, verb, group, resource, namespace string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace,
		},
	}}
	require.NoError(t, c.Create(t.Context(), review))
	return review.Status.Allowed
}

// operatorRunsRestricted submits the operator's pod to Pod Security admission.
func operatorRunsRestricted(t *testing.T, c client.Client) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	require.NoError(t, c.Create(t.Context(), namespace))
	var operator appsv1.Deployment
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "tangram-system", Name: "tangram-operator"}, &operator))
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace.Name},
			Spec:       *operator.Spec.Template.Spec.DeepCopy(),
		}
	}
	require.NoError(t, c.Create(t.Context(), pod("as-rendered")))

	loose := pod("loose")
	loose.Spec.Containers[0].SecurityContext.Capabilities = nil
	require.ErrorContains(t, c.Create(t.Context(), loose), `violates PodSecurity "restricted`)

	container := operator.Spec.Template.Spec.Containers[0]
	require.True(t, *container.SecurityContext.ReadOnlyRootFilesystem, "beyond what restricted asks")
	require.NotEmpty(t, container.Resources.Limits.Memory().String())
}
