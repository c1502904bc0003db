package plancli

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/json"
	kubeyaml "sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// Deployment reads a MoEDeployment from a YAML or JSON file ("-": stdin). name is NAME or NAMESPACE/NAME; "": the only
// one. It skips objects of other kinds, rejects unknown fields and sets defaults as the API server does.
func Deployment(path, name string, stdin io.Reader) (*api.MoEDeployment, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("--filename: %w", err)
	}
	d, err := deployment(text, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func deployment(text []byte, name string) (*api.MoEDeployment, error) {
	all, err := objects(text)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(slices.Clone(all), func(o object) bool { return o.kind != "MoEDeployment" || o.apiVersion != api.GroupVersion.String() })
	if len(found) == 0 {
		return nil, fmt.Errorf("found %s; want a MoEDeployment of %s", kinds(all), api.GroupVersion)
	}
	called := make([]string, len(found))
	for i, o := range found {
		called[i] = o.called()
	}
	if name != "" {
		found = slices.DeleteFunc(found, func(o object) bool { return o.name != name && o.namespace+"/"+o.name != name })
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("no MoEDeployment is named %q; found %s", name, strings.Join(called, ", "))
	case len(found) > 1:
		return nil, fmt.Errorf("found %d MoEDeployments: %s; choose one with --name NAME or --name NAMESPACE/NAME", len(found), strings.Join(called, ", "))
	}
	d := &api.MoEDeployment{}
	if err := decode(found[0].node, d); err != nil {
		return nil, err
	}
	return d, defaults(found[0].node, d)
}

// decode decodes a node strictly, as the API server does.
func decode(n *yaml.Node, d *api.MoEDeployment) error {
	text, err := yaml.Marshal(n)
	if err != nil {
		return brokenYAML(err)
	}
	wire, err := kubeyaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("line %d: object cannot be converted to JSON; want string keys and no anchors of other objects", n.Line)
	}
	unknown, err := json.UnmarshalStrict(wire, d)
	if wrong := (*stdjson.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		where := at(n, wrong.Field)
		return fmt.Errorf("line %d: %s: found %s; want %s", where.Line, wrong.Field, describe(where), wanted(wrong.Type))
	}
	if err != nil { // a type with its own parser, such as a quantity or a time, does not name the field
		return refusedScalar(n, err)
	}
	if len(unknown) == 0 {
		return nil
	}
	var field json.FieldError
	if errors.As(unknown[0], &field) {
		return fmt.Errorf("line %d: unknown field %q; run kubectl explain moedeployment --recursive for all fields", at(n, field.FieldPath()).Line, field.FieldPath())
	}
	return fmt.Errorf("line %d: MoEDeployment: %w", n.Line, unknown[0])
}

// refusedScalar names the scalar that prevents decoding.
func refusedScalar(n *yaml.Node, err error) error {
	want := "a time, e.g. 2006-01-02T15:04:05Z"
	if strings.Contains(err.Error(), "quantities") {
		want = "an amount, e.g. 24Gi, 512Mi or 200m"
	}
	var find func(*yaml.Node, string) error
	find = func(c *yaml.Node, path string) error {
		for i := 1; c.Kind == yaml.MappingNode && i < len(c.Content); i += 2 {
			if found := find(c.Content[i], path+"."+c.Content[i-1].Value); found != nil {
				return found
			}
		}
		for i := 0; c.Kind == yaml.SequenceNode && i < len(c.Content); i++ {
			if found := find(c.Content[i], fmt.Sprintf("%s[%d]", path, i)); found != nil {
				return found
			}
		}
		if c.Kind != yaml.ScalarNode {
			return nil
		}
		kept := *c
		*c = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		text, _ := yaml.Marshal(n)
		wire, _ := kubeyaml.YAMLToJSON(text)
		again := json.UnmarshalCaseSensitivePreserveInts(wire, &api.MoEDeployment{})
		*c = kept
		if again != nil {
			return nil
		}
		return fmt.Errorf("line %d: %s: found %s; want %s", c.Line, strings.TrimPrefix(path, "."), describe(c), want)
	}
	if found := find(n, ""); found != nil {
		return found
	}
	return fmt.Errorf("line %d: several fields of the MoEDeployment cannot be read: %w", n.Line, err)
}

// wanted describes a Go type in plain words.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// defaults sets the API server's defaults for the fields that a plan needs.
func defaults(n *yaml.Node, d *api.MoEDeployment) error {
	s := &d.Spec
	for _, f := range []struct {
		name  string
		value *int32
		unset int32
	}{{"replicas", &s.Replicas, cmp.Or(d.Status.DesiredReplicas, 1)}, {"ranksPerPod", &s.RanksPerPod, 1}, {"tuning.granuleRows", &s.Tuning.GranuleRows, 0}, {"tuning.spareBanks", &s.Tuning.SpareBanks, 2}} {
		if *f.value < 0 {
			return fmt.Errorf("line %d: spec.%s is %d; want at least 1", at(n, "spec."+f.name).Line, f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.unset
		}
	}
	return nil
}
