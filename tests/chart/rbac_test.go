package chart_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"tangram.dev/tests/internal/apiserver"
)

// Files generated from the types and markers (deep copies, CRDs, rules, reference) are up to date.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	command := exec.CommandContext(t.Context(), filepath.Join(apiserver.Root(), "api", "generate.sh"), "--check")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
}

// The rendered rules grant exactly the rights of the operator's markers, in any set of watched namespaces.
func TestRBACRulesMatchMarkers(t *testing.T) {
	asked := markers(t)
	t.Run("all namespaces", func(t *testing.T) {
		objects := rendered(t)
		cluster, own := &rbacv1.ClusterRole{}, &rbacv1.Role{}
		objects.find(t, "ClusterRole", "tangram-operator.tangram-system", cluster)
		objects.find(t, "Role", "tangram-operator-leader", own)
		require.Equal(t, asked, merge(rights(cluster.Rules), rights(own.Rules)))
		require.Equal(t, []string{"events", "leases"}, resources(own.Rules), "in the operator's own namespace")
		require.NotContains(t, resources(cluster.Rules), "leases", "the operator's lease is in its own namespace")
	})
	t.Run("two namespaces", func(t *testing.T) {
		objects := rendered(t, "--set", "watchNamespaces={team-a,team-b}")
		cluster, own := &rbacv1.ClusterRole{}, &rbacv1.Role{}
		objects.find(t, "ClusterRole", "tangram-operator.tangram-system", cluster)
		objects.find(t, "Role", "tangram-operator-leader", own)
		require.Equal(t, []string{"nodes", "subjectaccessreviews", "tokenreviews"}, resources(cluster.Rules), "in the whole cluster")
		var where []string
		for _, object := range objects {
			if object.GetKind() != "Role" || object.GetName() != "tangram-operator-worlds" {
				continue
			}
			worlds := &rbacv1.Role{}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, worlds))
			require.Equal(t, asked, merge(rights(cluster.Rules), rights(worlds.Rules), rights(own.Rules)))
			where = append(where, worlds.Namespace)
		}
		require.Equal(t, []string{"team-a", "team-b"}, where)
	})
}

func TestRBACRulesHaveNoWildcard(t *testing.T) {
	for right := range markers(t) {
		require.NotContains(t, right, "*")
	}
}

// Every role is bound only to the operator's account.
func TestRolesAreBoundOnlyToOperator(t *testing.T) {
	for _, args := range valueSets {
		bound := map[string]bool{}
		objects := rendered(t, args...)
		for _, object := range objects {
			if !strings.HasSuffix(object.GetKind(), "RoleBinding") {
				continue
			}
			binding := &rbacv1.RoleBinding{}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, binding))
			bound[binding.RoleRef.Kind+"/"+binding.RoleRef.Name] = true
			require.Len(t, binding.Subjects, 1)
			require.Equal(t, "tangram-system", binding.Subjects[0].Namespace)
			objects.find(t, "ServiceAccount", binding.Subjects[0].Name, &corev1.ServiceAccount{})
		}
		for _, object := range objects {
			forUsers := object.GetLabels()["rbac.authorization.k8s.io/aggregate-to-admin"] == "true" || strings.HasSuffix(object.GetName(), ".metrics")
			if strings.HasSuffix(object.GetKind(), "Role") && !forUsers {
				require.True(t, bound[object.GetKind()+"/"+object.GetName()], object.GetName())
			}
		}
	}
}

// markers returns the rights in the markers of the operator's sources.
func markers(t *testing.T) map[string]bool {
	t.Helper()
	made := t.TempDir()
	command := exec.CommandContext(t.Context(), filepath.Join(apiserver.Root(), "build", "bin", "controller-gen"),
		"rbac:roleName=operator", "paths=./internal/controller/...", "output:rbac:dir="+made)
	command.Dir = filepath.Join(apiserver.Root(), "operator")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	text, err := os.ReadFile(filepath.Join(made, "role.yaml"))
	require.NoError(t, err, "controller-gen found no RBAC markers in operator/internal/controller")
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var rules []rbacv1.PolicyRule
	for {
		role := &rbacv1.ClusterRole{}
		if err := decoder.Decode(role); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		rules = append(rules, role.Rules...)
	}
	require.NotEmpty(t, rules)
	return rights(rules)
}

// rights lists granted rights: group, resource, verb and, if restricted, names.
func rights(rules []rbacv1.PolicyRule) map[string]bool {
	all := map[string]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[strings.Join(append([]string{group, resource, verb}, rule.ResourceNames...), " ")] = true
				}
			}
		}
	}
	return all
}

func merge(sets ...map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, set := range sets {
		for right := range set {
			all[right] = true
		}
	}
	return all
}

// resources lists the resources in rules, sorted.
func resources(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		all = append(all, rule.Resources...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
