package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	namespace = "demo"
	world     = "demo"
	object    = "moedeployment/" + world
	manifests = "e2e/demo/manifests"

	waitFirst = 3 * time.Minute // for pods, images, the checkpoint
	waitStep  = 3 * time.Minute
	waitDown  = 2 * time.Minute
)

func (o *options) cluster() cluster.Options {
	c := cluster.Options{Root: o.root, Dir: o.clusterDir, Say: say}
	if o.vllm {
		c.Archives = []string{vllmImage}
	}
	return c
}

// onCluster starts a cluster, runs the steps under load, and removes the cluster.
func onCluster(ctx context.Context, o options) (err error) {
	if o.ranks < 1 {
		return fmt.Errorf("--ranks %d: at least 1", o.ranks)
	}
	trace, err := load.NewTrace(o.seed, o.span)
	if err != nil {
		return err
	}
	var known *oracle
	if o.vllm {
		if known, err = askOracle(ctx, &o, trace); err != nil {
			return err
		}
		defer known.stop()
	}
	// An existing report belongs to another run.
	if err := os.Remove(filepath.Join(o.out, reportFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer func() { // also if it is half started
		switch {
		case o.keep:
			say("the cluster is left: export KUBECONFIG=%s/kubeconfig; `make demo-down` removes it", o.clusterDir)
		case ctx.Err() != nil:
			say("interrupted: the cluster is taken down")
			fallthrough
		default:
			err = errors.Join(err, clusterDown(ctx, o))
		}
	}()
	if !o.vllm { // belongs to the other world
		if _, err := harness.Checkpoint(ctx, o.root, burstsModel); err != nil {
			return err
		}
	}
	c, err := bringUp(ctx, o)
	if err != nil {
		return diagnosed(ctx, c, err)
	}
	play := playsOnCluster
	var b *bursts
	if o.vllm {
		if err := known.choose(trace); err != nil {
			return err
		}
		play = playsOfVLLM
	} else if b, err = meetBursts(ctx, o, c.Kube.In(namespace)); err != nil {
		return diagnosed(ctx, c, fmt.Errorf("%s: %w", burstsTitle, err))
	}
	r := &report{Seed: o.seed, Ranks: o.ranks, around: o.pause, leastStreams: o.streams}
	results, err := storyOnCluster(ctx, o, c.Kube.In(namespace), trace, r, play)
	if err != nil {
		return diagnosed(ctx, c, err)
	}
	if o.vllm {
		r.Oracle = known.compare(results)
	}
	if b != nil {
		r.Bursts = b
		if err := playBursts(ctx, o, b); err != nil {
			return diagnosed(ctx, c, fmt.Errorf("%s: %w", burstsTitle, err))
		}
	}
	var reference []*load.Result
	if !o.vllm { // transformers has answered them
		if reference, err = oneRank(ctx, o, results); err != nil {
			return err
		}
	}
	if err := finish(o, r, results, reference); err != nil {
		return diagnosed(ctx, c, err)
	}
	return nil
}

// diagnosed prints the state of the cluster that explains an error, unless the run was interrupted.
func diagnosed(ctx context.Context, c *cluster.Cluster, err error) error {
	if c != nil && ctx.Err() == nil {
		terminal.stop()
		_, _ = fmt.Fprintln(os.Stderr, c.Diagnose(ctx, namespace))
	}
	return err
}

// bringUp starts a cluster with the demo's world Ready. After an error the cluster may be half started.
func bringUp(ctx context.Context, o options) (*cluster.Cluster, error) {
	began := time.Now()
	c, err := cluster.Up(ctx, o.cluster())
	if err != nil {
		return nil, err
	}
	if err := c.Models(ctx, namespace); err != nil {
		return c, err
	}
	k := c.Kube.In(namespace)
	k.Said = func(line string) { say("$ %s", line) }
	if err := applyManifests(ctx, o, k); err != nil {
		return c, err
	}
	stop := during(o.brief, func() string { return "waiting until " + object + " is Ready" })
	err = k.Wait(ctx, object, v1alpha2.ConditionReady, waitFirst)
	stop()
	if err != nil {
		return c, err
	}
	say("%d ranks serve, %.1f s after the start", o.ranks, time.Since(began).Seconds())
	return c, nil
}

// manifest returns the manifest of the world.
func (o *options) manifest() string {
	if o.vllm {
		return filepath.Join(o.root, manifests, "vllm/20-moedeployment.yaml")
	}
	return filepath.Join(o.root, manifests, "20-moedeployment.yaml")
}

// readManifest returns a MoEDeployment as the API's type and as written.
func readManifest(file string) (*v1alpha2.MoEDeployment, map[string]any, error) {
	wire, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	typed, written := &v1alpha2.MoEDeployment{}, map[string]any{}
	if err := errors.Join(yaml.UnmarshalStrict(wire, typed), yaml.Unmarshal(wire, &written)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return typed, written, nil
}

// applyManifests applies the demo's manifests. Options with another number of ranks, other engines or slower steps need
// a modified copy of the world.
func applyManifests(ctx context.Context, o options, k *kube.Client) error {
	typed, written, err := readManifest(o.manifest())
	if err != nil {
		return err
	}
	dir := filepath.Join(o.root, manifests)
	if int(typed.Spec.Replicas) == o.ranks && !o.vllm && o.leastStep == 0 {
		return k.ApplyFile(ctx, dir)
	}
	for _, name := range []string{"00-namespace.yaml", "10-models.yaml"} {
		if err := k.ApplyFile(ctx, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// Not the typed object: it would set zero values.
	spec := written["spec"].(map[string]any) // the typed one has a spec
	spec["replicas"] = o.ranks
	if o.leastStep > 0 {
		engine := spec["engine"].(map[string]any)
		engine["args"] = append(engine["args"].([]any), "--min-step-ms", fmt.Sprint(o.leastStep.Milliseconds()))
	}
	return k.Apply(ctx, written)
}

// plays runs acts after the steps, and adds them to the report; each reports its begin.
type plays func(ctx context.Context, o options, k *kube.Client, trace *load.Trace, r *report, begin func(string)) error

// playsOnCluster makes experts hot, and then kills processes.
func playsOnCluster(ctx context.Context, o options, k *kube.Client, trace *load.Trace, r *report, begin func(string)) (err error) {
	if err := sleep(ctx, o.pause); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, waitAct)
	defer cancel()
	if r.Heat, err = expertsGetHot(limited, o, k, trace, begin); err != nil {
		return fmt.Errorf("%s: %w", heatName, err)
	}
	if r.GatewayBefore, err = gatewayCounts(ctx, k); err != nil {
		return err
	}
	r.Acts, err = actsOnCluster(ctx, o, k, begin)
	return err
}

// storyOnCluster runs a user's commands while requests stream, and records their effects.
func storyOnCluster(ctx context.Context, o options, k *kube.Client, trace *load.Trace, r *report, play plays) ([]*load.Result, error) {
	url, err := k.AwaitGateway(ctx, world)
	if err != nil {
		return nil, err
	}
	say("load on %s", url)
	counters := &load.Counters{}
	client := &load.Client{URL: url, Model: world, HTTP: &http.Client{}, Counters: counters}
	d := newDisplay(counters)
	k = k.In(k.Namespace)
	k.Said = d.said

	loaded, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	stop, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- client.Play(loaded, trace, o.atOnce, stop) }()
	shown, hide := context.WithCancel(ctx)
	hidden := make(chan struct{})
	go func() { defer close(hidden); d.run(shown, k, world) }()
	defer func() { hide(); <-hidden }()

	begin := func(event string) {
		awaitStreams(ctx, counters, o.streams)
		d.begin(event)
	}
	all := steps(o.ranks, o.joiners())
	for i, s := range all {
		if err = sleep(ctx, o.pause); err != nil {
			break
		}
		begin(fmt.Sprintf("%d/%d %s", i+1, len(all), s.name))
		var t *transition
		if t, err = takeStep(ctx, k, s); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break
		}
		r.Transitions = append(r.Transitions, t)
	}
	if err == nil {
		err = play(ctx, o, k, trace, r, begin)
	}
	if err == nil {
		err = sleep(ctx, o.pause)
	}
	if err == nil {
		r.Gateway, err = gatewayCounts(ctx, k)
	}
	close(stop)
	if err != nil {
		stopLoad() // so that no request waits forever
		<-played
		return nil, err
	}
	d.begin("the last requests")
	select { // each of them has at most some hundred tokens left
	case results := <-played:
		return results, nil
	case <-time.After(waitStep):
		return nil, fmt.Errorf("%d requests still wait %s after the last transition", counters.Now().Open, waitStep)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// awaitStreams waits, for a minute at most, until more than `least` streams run. The final count is by the clients'
// clocks.
func awaitStreams(ctx context.Context, c *load.Counters, least int) {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for least > 0 && c.Now().Streaming <= int64(least) {
		if sleep(limited, look) != nil {
			return
		}
	}
}

// gatewayCounts sums the counts of all gateways of the world.
func gatewayCounts(ctx context.Context, k *kube.Client) (sum load.GatewayCounts, err error) {
	pods, err := k.Pods(ctx, kube.GatewaySelector(world))
	if err != nil || len(pods) == 0 {
		return sum, fmt.Errorf("gateways whose counts can be read: %d, %w", len(pods), err)
	}
	for _, p := range pods {
		port, err := metricsPort(p)
		if err != nil {
			return sum, err
		}
		text, err := k.Run(ctx, nil, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", k.Namespace, p.Name, port))
		if err != nil {
			return sum, err
		}
		counts, err := load.ReadGatewayCounts(strings.NewReader(text))
		if err != nil {
			return sum, fmt.Errorf("gateway %s: %w", p.Name, err)
		}
		sum = sum.Plus(counts)
	}
	return sum, nil
}

// metricsPort returns a pod's metrics port: the API server's proxy knows ports of services by name, but of pods only by
// number.
func metricsPort(p corev1.Pod) (int32, error) {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == "metrics" {
				return port.ContainerPort, nil
			}
		}
	}
	return 0, fmt.Errorf("pod %s has no port named metrics", p.Name)
}

// takeStep requests a shape, waits until the world has it, and returns the operator's record.
func takeStep(ctx context.Context, k *kube.Client, s step) (*transition, error) {
	before, err := k.Transitions(ctx, world)
	if err != nil {
		return nil, err
	}
	if s.resize {
		err = k.Scale(ctx, object, s.ranks)
	} else {
		err = k.Patch(ctx, object, fmt.Sprintf(`{"spec":{"parallelism":{"mode":%q}}}`, s.mode))
	}
	if err != nil {
		return nil, err
	}
	if err := k.Wait(ctx, object, v1alpha2.ConditionReady, waitStep); err != nil {
		return nil, err
	}
	record, err := recordSince(ctx, k, before)
	if err != nil {
		return nil, err
	}
	t := &transition{Name: s.name, Resize: s.resize, Record: record}
	say("%s", moved(t))
	return t, nil
}

// clusterUp starts the cluster and leaves it running for the user.
func clusterUp(ctx context.Context, o options) error {
	c, err := bringUp(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return errors.Join(err, clusterDown(ctx, o))
		}
		return fmt.Errorf("%w\nthe cluster was kept for inspection; `make demo-down` removes it", diagnosed(ctx, c, err))
	}
	url, err := c.Kube.In(namespace).AwaitGateway(ctx, world)
	if err != nil {
		return err
	}
	_, err = fmt.Printf(`
export KUBECONFIG=%[1]s PATH=%[2]s:$PATH
kubectl config set-context --current --namespace=%[3]s
kubectl get moedeployment,layouttransition,pods
curl -sN %[4]s/v1/completions -H 'Content-Type: application/json' \
  -d '{"model": "%[5]s", "prompt": [1, 2, 3], "max_tokens": 32, "stream": true}'
kubectl scale moedeployment/%[5]s --replicas=%[6]d
kubectl wait --for=condition=Ready moedeployment/%[5]s --timeout=3m
kubectl patch moedeployment/%[5]s --type=merge -p '{"spec":{"parallelism":{"mode":"TensorParallel"}}}'
kubectl describe moedeployment/%[5]s
make demo-down   # removes all of it
`, c.Kube.Kubeconfig, filepath.Dir(c.Kube.Binary), namespace, url, world, o.ranks+2)
	return err
}

// clusterDown removes the cluster, also after an interruption.
func clusterDown(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitDown)
	defer cancel()
	return cluster.Down(ctx, o.cluster())
}
