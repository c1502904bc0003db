package simcli

import (
	"fmt"
	"slices"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
)

// Models returns the models with kernel tables, by the names of their geometries.
func Models() []string {
	all, err := geometry.Public()
	if err != nil {
		return nil // embedded; Tables reports the error
	}
	var out []string
	for _, g := range all {
		if slices.Contains(kernels.Models(), strings.ToLower(g.Model)) {
			out = append(out, g.Model)
		}
	}
	slices.Sort(out)
	return out
}

// Tables returns the kernel table of a model, named in any case, and its geometry for this number of ranks.
func Tables(model string, ranks int) (*geometry.View, *kernels.Table, error) {
	if !slices.ContainsFunc(Models(), func(name string) bool { return strings.EqualFold(name, model) }) {
		return nil, nil, fmt.Errorf("no measured kernels for --model %q; want one of %s", model, strings.Join(Models(), ", "))
	}
	v, err := View(model, ranks)
	if err != nil {
		return nil, nil, fmt.Errorf("--model: %w", err)
	}
	table, err := kernels.Open(model)
	if err != nil {
		return nil, nil, fmt.Errorf("--model: %w", err)
	}
	return v, table, nil
}

// CheckRanks checks the number of ranks of a flag: kernels were measured up to kernels.MeasuredRanks.
func CheckRanks(flag string, ranks int) error {
	if ranks < 1 || ranks > kernels.MeasuredRanks {
		return fmt.Errorf("%s is %d; want 1 to %d, the measured numbers of ranks", flag, ranks, kernels.MeasuredRanks)
	}
	return nil
}

// CheckKernels checks that kernels of this engine and routing were measured.
func CheckKernels(t *kernels.Table, engineFlag, engine, routing string) error {
	if !slices.Contains(t.Engines(), engine) {
		return fmt.Errorf("no measured kernels for %s %q; want one of %s", engineFlag, engine, strings.Join(t.Engines(), ", "))
	}
	if !slices.Contains(t.Routings(), routing) {
		return fmt.Errorf("no measured kernels for --routing %q; want one of %s", routing, strings.Join(t.Routings(), ", "))
	}
	return nil
}

// check checks everything that does not need the requests.
func (o Options) check() error {
	if o.Times < 1 {
		return fmt.Errorf("--times is %d; want at least 1", o.Times)
	}
	if o.Concurrency < 0 {
		return fmt.Errorf("--concurrency is %d; want at least 1, or 0 for the arrival times of the trace", o.Concurrency)
	}
	if slo := o.Width.SLO; slo.TTFT != 0 || slo.TPOT != 0 {
		if err := slo.Check(); err != nil {
			return fmt.Errorf("--ttft, --tpot, --attainment: %w", err)
		}
	}
	if !(o.Noise >= 0 && o.Noise < .5) {
		return fmt.Errorf("--noise is %v; want at least 0 and less than 0.5", o.Noise)
	}
	if !(o.RankGB > 0 && o.RankGB < 1e6) {
		return fmt.Errorf("--rank-gb is %v; want more than 0 and less than 1e6", o.RankGB)
	}
	if err := CheckRanks("--ranks", o.Ranks); err != nil {
		return err
	}
	_, table, err := Tables(o.Model, o.Ranks)
	if err != nil {
		return err
	}
	if err := CheckKernels(table, "--truth", o.Truth, o.Routing); err != nil {
		return err
	}
	if err := CheckKernels(table, "--prior", o.prior(), o.Routing); err != nil {
		return err
	}
	if err := o.checkPolicies(); err != nil {
		return err
	}
	if o.widthPlayed() {
		_, _, err = o.widthAsked()
	}
	return err
}

func (o Options) checkPolicies() error {
	kinds, err := o.kinds()
	if err != nil {
		return err
	}
	names := []string{"ExpertParallel", "TensorParallel", "threshold", "rollout", "calibrated", "hindsight", "width"}
	for _, k := range kinds[2:] {
		name, _, _ := strings.Cut(k.On(o.Ranks).String(), "/")
		names = append(names, name)
	}
	for _, p := range o.Policies {
		if !slices.Contains(names, p) {
			return fmt.Errorf("--policy is %q; want one of %s, or a layout of --hybrids as gG,tT", p, strings.Join(names, ", "))
		}
	}
	return nil
}

// Joined rejoins policies of a comma-separated list: the name of a hybrid contains a comma (g8,t1).
func Joined(list []string) []string {
	var out []string
	for _, name := range list {
		if n := len(out); n > 0 && strings.HasPrefix(name, "t") && group(name) && strings.HasPrefix(out[n-1], "g") && group(out[n-1]) {
			out[n-1] += "," + name
			continue
		}
		out = append(out, name)
	}
	return out
}

// group: part of a hybrid's name, a letter and a number.
func group(name string) bool { return len(name) > 1 && strings.Trim(name[1:], "0123456789") == "" }
