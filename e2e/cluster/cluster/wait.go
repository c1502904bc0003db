package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"tangram.dev/e2e/cluster/host"
)

const (
	lookEvery = 100 * time.Millisecond
	lookLimit = 2 * time.Minute // many times the usual duration
)

func newClient(dir string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(dir))
	if err != nil {
		return nil, err
	}
	config.Timeout = 5 * time.Second
	return kubernetes.NewForConfig(config)
}

func waitServer(ctx context.Context, client *kubernetes.Clientset) error {
	if err := host.Poll(ctx, lookEvery, lookLimit, func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}); err != nil {
		return fmt.Errorf("the apiserver does not become ready: %w", err)
	}
	return nil
}

func waitNodes(ctx context.Context, client *kubernetes.Clientset, want int) error {
	return host.Poll(ctx, lookEvery, lookLimit, func() error {
		ready, err := readyNodes(ctx, client)
		if err != nil {
			return fmt.Errorf("nodes: %w", err)
		}
		var not []string
		count := 0
		for name, why := range ready {
			if why == "" {
				count++
			} else {
				not = append(not, name+": "+why)
			}
		}
		if count < want {
			return fmt.Errorf("%d of %d nodes are ready; %s", count, want, strings.Join(not, "; "))
		}
		return nil
	})
}

// readyNodes returns the reason why each node is not ready; an empty text: it is.
func readyNodes(ctx context.Context, client *kubernetes.Clientset) (map[string]string, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	result := map[string]string{}
	for _, node := range nodes.Items {
		result[node.Name] = "no condition Ready"
		for _, condition := range node.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			result[node.Name] = ""
			if condition.Status != corev1.ConditionTrue {
				result[node.Name] = fmt.Sprintf("%s: %s", condition.Reason, condition.Message)
			}
		}
		// The node controller removes the taint a moment later.
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady && result[node.Name] == "" {
				result[node.Name] = "taint " + taint.Key
			}
		}
	}
	return result, nil
}

// waitServiceAccount waits for `default`, without which no pod of the namespace `default` can be created.
func waitServiceAccount(ctx context.Context, client *kubernetes.Clientset) error {
	return host.Poll(ctx, lookEvery, lookLimit, func() error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}
