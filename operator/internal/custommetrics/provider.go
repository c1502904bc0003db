// Package custommetrics serves the load of worlds to autoscalers as custom.metrics.k8s.io, from the operator's process.
package custommetrics

import (
	"context"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"tangram.dev/operator/internal/readings"

	api "tangram.dev/api/v1alpha2"
)

// Worlds gives access to worlds and their load.
type Worlds interface {
	// Load returns a world's load over a window. The error says why the current load is unknown.
	Load(ctx context.Context, world types.NamespacedName, window time.Duration) (readings.Reading, error)
	// Find returns the worlds of a namespace that match a label selector.
	Find(ctx context.Context, namespace string, s labels.Selector) ([]types.NamespacedName, error)
}

// moedeployments is the resource as the API server names it.
var moedeployments = schema.GroupResource{Group: api.GroupVersion.Group, Resource: "moedeployments"}

// Provider serves the metrics of worlds.
type Provider struct{ Worlds Worlds }

var _ provider.CustomMetricsProvider = (*Provider)(nil)

// ListAllMetrics implements provider.CustomMetricsProvider.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo {
	out := make([]provider.CustomMetricInfo, len(figures))
	for i, f := range figures {
		out[i] = provider.CustomMetricInfo{GroupResource: moedeployments, Namespaced: true, Metric: f.name}
	}
	return out
}

// GetMetricByName implements provider.CustomMetricsProvider.
func (p *Provider) GetMetricByName(ctx context.Context, name types.NamespacedName, info provider.CustomMetricInfo, s labels.Selector) (*custom_metrics.MetricValue, error) {
	f, known := find(info.Metric)
	if !known || info.GroupResource != moedeployments {
		return nil, provider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
	}
	slo, err := sloOf(f, s)
	if err != nil {
		return nil, err
	}
	reading, err := p.Worlds.Load(ctx, name, window)
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("MoEDeployment %s: %v", name, err))
	}
	v, err := f.value(reading, slo)
	if err != nil {
		return nil, err
	}
	value := &custom_metrics.MetricValue{
		DescribedObject: custom_metrics.ObjectReference{APIVersion: api.GroupVersion.String(), Kind: "MoEDeployment", Namespace: name.Namespace, Name: name.Name},
		Metric:          custom_metrics.MetricIdentifier{Name: f.name},
		Timestamp:       metav1.NewTime(reading.At),
		Value:           *resource.NewMilliQuantity(int64(math.Round(v*1e3)), resource.DecimalSI),
	}
	if asked, _ := s.Requirements(); len(asked) > 0 {
		if value.Metric.Selector, err = metav1.ParseToLabelSelector(s.String()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if f.window {
		value.WindowSeconds = ptr.To(int64(math.Round(reading.Window.Seconds)))
	}
	return value, nil
}

// GetMetricBySelector implements provider.CustomMetricsProvider. It omits worlds whose load is unknown.
func (p *Provider) GetMetricBySelector(ctx context.Context, namespace string, s labels.Selector, info provider.CustomMetricInfo, of labels.Selector) (*custom_metrics.MetricValueList, error) {
	names, err := p.Worlds.Find(ctx, namespace, s)
	if err != nil {
		return nil, err
	}
	out := &custom_metrics.MetricValueList{}
	for _, name := range names {
		v, err := p.GetMetricByName(ctx, name, info, of)
		switch {
		case apierrors.IsServiceUnavailable(err) || apierrors.IsNotFound(err) && len(names) > 1:
			continue
		case err != nil:
			return nil, err
		}
		out.Items = append(out.Items, *v)
	}
	return out, nil
}
