package plancli

import (
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha1"
)

// Deployment reads a MoEDeployment of a YAML or JSON file ("-": stdin); a field that is not known is an error. What is
// left out is as the API server would set it.
func Deployment(path string, stdin io.Reader) (*api.MoEDeployment, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	d := &api.MoEDeployment{}
	if err := yaml.UnmarshalStrict(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if d.Kind != "MoEDeployment" || d.APIVersion != api.GroupVersion.String() {
		return nil, fmt.Errorf("%s: it is a %q of %q; want a MoEDeployment of %s", path, d.Kind, d.APIVersion, api.GroupVersion)
	}
	s := &d.Spec
	for _, f := range []struct {
		name  string
		value *int32
		unset int32
	}{{"replicas", &s.Replicas, 1}, {"ranksPerPod", &s.RanksPerPod, 1}, {"model.granuleRows", &s.Model.GranuleRows, 128}, {"limits.spareBanks", &s.Limits.SpareBanks, 2}} {
		if *f.value < 0 {
			return nil, fmt.Errorf("%s: spec.%s is %d; want at least 1", path, f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.unset
		}
	}
	if s.Mode == "" {
		s.Mode = api.ModeExpert
	}
	return d, nil
}
