package controller

import (
	"bufio"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// customizations are the settings that users add to Argo CD.
func customizations(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(), "charts", "tangram", "argocd", "argocd-cm.yaml"))
	require.NoError(t, err)
	var patch corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict(text, &patch))
	return patch.Data
}

// toLua converts objects as Argo CD does for scripts.
func toLua(l *lua.LState, v any) lua.LValue {
	switch x := v.(type) {
	case map[string]any:
		out := l.NewTable()
		for key, value := range x {
			out.RawSetString(key, toLua(l, value))
		}
		return out
	case []any:
		out := l.NewTable()
		for _, value := range x {
			out.Append(toLua(l, value))
		}
		return out
	case string:
		return lua.LString(x)
	case float64:
		return lua.LNumber(x)
	case bool:
		return lua.LBool(x)
	}
	return lua.LNil
}

// script runs one of Argo CD's scripts on an object, with the same interpreter as Argo CD.
func script(t *testing.T, text string, object map[string]any) *lua.LTable {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	t.Cleanup(l.Close)
	for _, open := range []struct {
		name string
		f    lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		require.NoError(t, l.CallByParam(lua.P{Fn: l.NewFunction(open.f), Protect: true}, lua.LString(open.name)))
	}
	l.SetGlobal("obj", toLua(l, object))
	require.NoError(t, l.DoString(text))
	out, is := l.Get(-1).(*lua.LTable)
	require.True(t, is, "a script returns a table")
	return out
}

// recorded returns the recorded objects of a kind, from the tests of this package (see TestMain).
func recorded[T any](t *testing.T, file string) (objects []map[string]any, typed []T) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return objects, typed
		}
		var object map[string]any
		var one T
		require.NoError(t, json.Unmarshal(line, &object))
		require.NoError(t, json.Unmarshal(line, &one))
		objects, typed = append(objects, object), append(typed, one)
	}
}

// wantedHealth computes the expected health independently of the script.
func wantedHealth(d *api.MoEDeployment) string {
	is := map[string]metav1.Condition{}
	for _, c := range d.Status.Conditions {
		is[c.Type] = c
	}
	paused := is[api.ConditionProgressing].Reason == api.ReasonSuspended || is[api.ConditionProgressing].Reason == api.ReasonAborted
	broken := is[api.ConditionDegraded].Status == metav1.ConditionTrue || is[api.ConditionCertificatesValid].Status == metav1.ConditionFalse
	switch down := is[api.ConditionAvailable].Reason; {
	case d.DeletionTimestamp != nil, len(is) == 0, d.Status.ObservedGeneration != d.Generation:
		return "Progressing"
	case broken:
		return "Degraded"
	case paused:
		return "Suspended"
	case is[api.ConditionReady].Status == metav1.ConditionTrue:
		return "Healthy"
	case (down == api.ReasonGatewayNotReady || down == api.ReasonEnginesNotReady) && is[api.ConditionProgressing].Status == metav1.ConditionFalse:
		return "Degraded"
	}
	return "Progressing"
}

// Argo CD's health of each recorded object; the objects cover every type of condition and every reason.
func TestArgoHealthOfEveryCondition(t *testing.T) {
	text := customizations(t)["resource.customizations.health.serving.tangram.dev_MoEDeployment"]
	objects, typed := recorded[api.MoEDeployment](t, "moedeployments.jsonl")
	seen, shown := map[string]bool{}, map[string]int{}
	for i, object := range objects {
		d := &typed[i]
		for _, c := range d.Status.Conditions {
			seen[c.Type], seen[c.Reason] = true, true
		}
		health := script(t, text, object)
		got, message := health.RawGetString("status").String(), health.RawGetString("message").String()
		shown[got]++
		require.Equal(t, wantedHealth(d), got, "%s: %+v", message, d.Status.Conditions)
		require.NotEmpty(t, message)
	}
	t.Logf("%d objects: %v", len(objects), shown)
	for _, health := range []string{"Healthy", "Progressing", "Degraded", "Suspended"} {
		require.Positive(t, shown[health], health)
	}
	rare := map[string]bool{api.ReasonExpired: true, api.ReasonGainTooSmall: true} // rare in these tests
	for constant, value := range conditionNames(t) {
		require.True(t, seen[value] || rare[value], "no recorded object has %s (%s): record again, as README.md tells", constant, value)
	}
	require.Equal(t, "Progressing", script(t, text, map[string]any{"metadata": map[string]any{"generation": 1.}}).RawGetString("status").String(), "nobody looked yet")
}

// conditionNames are the types and the reasons of the API, by constant.
func conditionNames(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(), "api", "v1alpha2", "names.go"), nil, 0)
	require.NoError(t, err)
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, is := n.(*ast.ValueSpec); is && len(v.Values) == 1 && (strings.HasPrefix(v.Names[0].Name, "Condition") || strings.HasPrefix(v.Names[0].Name, "Reason")) {
			if literal, is := v.Values[0].(*ast.BasicLit); is {
				value, err := strconv.Unquote(literal.Value)
				require.NoError(t, err)
				out[v.Names[0].Name] = value
			}
		}
		return true
	})
	require.Greater(t, len(out), 40)
	return out
}

func TestArgoHealthOfTransitions(t *testing.T) {
	text := customizations(t)["resource.customizations.health.serving.tangram.dev_LayoutTransition"]
	objects, typed := recorded[api.LayoutTransition](t, "layouttransitions.jsonl")
	want := map[api.TransitionPhase]string{api.PhaseSucceeded: "Healthy", api.PhaseSuperseded: "Healthy", api.PhaseFailed: "Degraded", api.PhaseAborted: "Suspended"}
	seen := map[api.TransitionPhase]bool{}
	for i, object := range objects {
		phase := typed[i].Status.Phase
		seen[phase] = true
		health, ended := want[phase]
		if !ended {
			health = "Progressing"
		}
		got := script(t, text, object)
		require.Equal(t, health, got.RawGetString("status").String(), phase)
		require.Contains(t, got.RawGetString("message").String(), typed[i].Spec.Summary)
	}
	for phase := range want {
		require.True(t, seen[phase], phase)
	}
	require.Greater(t, len(seen), len(want), "one that runs")
}

// Actions do the same as kubectl commands, and exist only when they would have an effect.
func TestArgoActions(t *testing.T) {
	var actions struct {
		Discovery   string `json:"discovery.lua"`
		Definitions []struct {
			Name   string
			Action string `json:"action.lua"`
		}
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(customizations(t)["resource.customizations.actions.serving.tangram.dev_MoEDeployment"]), &actions))
	objects, typed := recorded[api.MoEDeployment](t, "moedeployments.jsonl")
	done := map[string]int{}
	for i, object := range objects {
		d := &typed[i]
		offered := script(t, actions.Discovery, object)
		usable := map[string]bool{"suspend": !d.Spec.Suspend, "resume": d.Spec.Suspend, "abort": d.Status.Transition != nil}
		require.Len(t, actions.Definitions, len(usable))
		for _, a := range actions.Definitions {
			at, is := offered.RawGetString(a.Name).(*lua.LTable)
			require.True(t, is, a.Name)
			require.Equal(t, !usable[a.Name], lua.LVAsBool(at.RawGetString("disabled")), "%s of %+v", a.Name, d.Spec)
			if !usable[a.Name] {
				continue
			}
			done[a.Name]++
			changed := script(t, a.Action, object)
			suspend := lua.LVAsBool(changed.RawGetString("spec").(*lua.LTable).RawGetString("suspend"))
			if a.Name == "abort" {
				require.Equal(t, d.Status.Transition.Name, changed.RawGetString("metadata").(*lua.LTable).RawGetString("annotations").(*lua.LTable).RawGetString(api.AbortAnnotation).String())
				continue
			}
			require.Equal(t, a.Name == "suspend", suspend)
		}
	}
	require.Len(t, done, 3, "each was tried: %v", done)
}
