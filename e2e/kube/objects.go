package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"tangram.dev/api/v1alpha2"
)

// RankSelector selects the pods of a world's ranks.
func RankSelector(name string) string {
	return v1alpha2.WorldLabel + "=" + name + "," + v1alpha2.ComponentLabel + "=" + v1alpha2.ComponentRank
}

// GatewaySelector selects the pods of a world's gateways.
func GatewaySelector(name string) string {
	return v1alpha2.WorldLabel + "=" + name + "," + v1alpha2.ComponentLabel + "=" + v1alpha2.ComponentGateway
}

// MoEDeployment returns a MoEDeployment by name.
func (c *Client) MoEDeployment(ctx context.Context, name string) (*v1alpha2.MoEDeployment, error) {
	d := &v1alpha2.MoEDeployment{}
	return d, c.Get(ctx, d, "moedeployment", name)
}

// Pods returns the pods that a selector matches, by name.
func (c *Client) Pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.Get(ctx, &list, "pods", "-l", selector); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// Transitions returns a world's transitions, oldest first.
func (c *Client) Transitions(ctx context.Context, deployment string) ([]v1alpha2.LayoutTransition, error) {
	var list v1alpha2.LayoutTransitionList
	if err := c.Get(ctx, &list, "layouttransitions"); err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(list.Items, func(t v1alpha2.LayoutTransition) bool { return t.Spec.MoEDeploymentName != deployment })
	slices.SortStableFunc(own, func(a, b v1alpha2.LayoutTransition) int {
		// Creation times have whole seconds, so equal ones are ordered by epoch, which only rises.
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return int(a.Spec.From.Epoch - b.Spec.From.Epoch)
	})
	return own, nil
}

// Event has the parts of an event that the tests and the demo use.
type Event struct {
	Object  string // kind/name
	Type    string // Normal, Warning
	Reason  string
	Message string
}

func (e Event) String() string {
	return fmt.Sprintf("%s %s %s: %s", e.Type, e.Object, e.Reason, e.Message)
}

// Events returns the namespace's events, oldest first.
func (c *Client) Events(ctx context.Context) ([]Event, error) {
	var list eventsv1.EventList
	if err := c.Get(ctx, &list, "events.events.k8s.io"); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b eventsv1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	events := make([]Event, 0, len(list.Items))
	for _, e := range list.Items {
		events = append(events, Event{e.Regarding.Kind + "/" + e.Regarding.Name, e.Type, e.Reason, e.Note})
	}
	return events, nil
}

// Watch calls see with each version of the MoEDeployment until ctx ends or the connection breaks.
func (c *Client) Watch(ctx context.Context, name string, see func(*v1alpha2.MoEDeployment)) error {
	cmd := c.command(ctx, []string{"get", "moedeployment", name, "-o", "json", "--watch"})
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for decoder := json.NewDecoder(out); err == nil; {
		d := &v1alpha2.MoEDeployment{}
		if err = decoder.Decode(d); err == nil {
			see(d)
		}
	}
	if !errors.Is(err, io.EOF) && ctx.Err() == nil { // later objects could not be decoded either
		_ = cmd.Process.Kill()
	} else {
		err = nil
	}
	return errors.Join(err, cmd.Wait(), ctx.Err())
}

// GatewayURL returns the address of a node and the port, for a world whose gateway has a NodePort.
func (c *Client) GatewayURL(ctx context.Context, name string) (string, error) {
	var service corev1.Service
	if err := c.Get(ctx, &service, "service", name+"-gateway"); err != nil {
		return "", err
	}
	port := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
	if port < 0 {
		return "", fmt.Errorf("service %s-gateway of type %s has no node port: set spec.gateway.serviceType: NodePort", name, service.Spec.Type)
	}
	var nodes corev1.NodeList
	if err := c.Get(ctx, &nodes, "nodes"); err != nil {
		return "", err
	}
	for _, node := range nodes.Items {
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return fmt.Sprintf("http://%s:%d", a.Address, service.Spec.Ports[port].NodePort), nil
			}
		}
	}
	return "", fmt.Errorf("none of %d nodes has an internal address", len(nodes.Items))
}

// AwaitGateway waits until the gateway responds at its NodePort: the nodes' rules may be a moment behind a Service
// whose pods are ready.
func (c *Client) AwaitGateway(ctx context.Context, name string) (string, error) {
	url, err := c.GatewayURL(ctx, name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", http.NoBody)
		if err != nil {
			return "", err
		}
		reply, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return url, nil
			}
			err = fmt.Errorf("status %s", reply.Status)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the gateway of %s does not answer at %s: %w", name, url, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
