package cluster

import (
	"context"
	"strings"
	"time"

	"tangram.dev/e2e/kube"
)

// Diagnose collects the state after a failure in a namespace: the end of the operator's log, pods, the MoEDeployments
// and their transitions, warnings, and the logs of pods that do not run.
func (c *Cluster) Diagnose(ctx context.Context, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out strings.Builder
	show := func(k *kube.Client, args ...string) {
		text, err := k.Run(ctx, nil, args...)
		if err != nil {
			text += err.Error()
		}
		if text = strings.TrimSpace(text); text != "" {
			out.WriteString("--- kubectl -n " + k.Namespace + " " + strings.Join(args, " ") + "\n" + text + "\n")
		}
	}
	system, own := c.Kube.In(SystemNamespace), c.Kube.In(namespace)
	show(system, "get", "pods", "-o", "wide")
	show(system, "logs", "-l", "app.kubernetes.io/name=tangram-operator", "--tail=40", "--prefix")
	show(own, "get", "moedeployments,layouttransitions,pods,persistentvolumeclaims", "-o", "wide")
	show(own, "describe", "moedeployments")
	show(own, "get", "events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp")
	show(own, "logs", "-l", "serving.tangram.dev/component", "--all-containers", "--tail=10", "--prefix", "--ignore-errors", "--max-log-requests=64")
	return out.String()
}
