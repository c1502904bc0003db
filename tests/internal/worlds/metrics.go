package worlds

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics returns a process's present counters and gauges by name, summed over their labels.
func Metrics(ctx context.Context, url string) (map[string]float64, error) {
	families, err := read(ctx, url)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for name, family := range families {
		for _, m := range family.Metric {
			out[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out, nil
}

// CounterBy returns a counter's present values, summed by the values of a label.
func CounterBy(ctx context.Context, url, name, label string) (map[string]float64, error) {
	families, err := read(ctx, url)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, m := range families[name].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == label {
				out[l.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return out, nil
}

func read(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }() // only read
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: HTTP %d", url, reply.StatusCode)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(reply.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return families, nil
}
