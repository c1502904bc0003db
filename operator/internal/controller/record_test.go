package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// witness records, while tests run, the objects of our kinds that are the first to show something: a condition with a
// status and a reason, a phase, and so on.
type witness struct {
	mu   sync.Mutex
	kept map[string][][]byte // lines, by file
	seen map[string]bool
	stop context.CancelFunc
	wait sync.WaitGroup
}

// watchAll records until write.
func watchAll() (*witness, error) {
	c, err := client.NewWithWatch(cluster, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &witness{kept: map[string][][]byte{}, seen: map[string]bool{}, stop: cancel}
	for _, list := range []client.ObjectList{&api.MoEDeploymentList{}, &api.LayoutTransitionList{}} {
		w, err := c.Watch(ctx, list)
		if err != nil {
			cancel()
			return nil, err
		}
		r.wait.Go(func() {
			for event := range w.ResultChan() {
				if event.Type == watch.Added || event.Type == watch.Modified {
					r.see(event.Object.(client.Object))
				}
			}
		})
	}
	return r, nil
}

func (r *witness) see(o client.Object) {
	var file string
	var shows []string
	switch x := o.(type) {
	case *api.MoEDeployment:
		file = "moedeployments.jsonl"
		for _, c := range x.Status.Conditions {
			shows = append(shows, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		}
		shows = append(shows, fmt.Sprintf("health %s", wantedHealth(x)), fmt.Sprintf("suspend %t", x.Spec.Suspend), fmt.Sprintf("transition %t", x.Status.Transition != nil))
		x.Kind, x.APIVersion = "MoEDeployment", api.GroupVersion.String()
	case *api.LayoutTransition:
		file = "layouttransitions.jsonl"
		shows = append(shows, "phase "+string(x.Status.Phase))
		x.Kind, x.APIVersion = "LayoutTransition", api.GroupVersion.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(shows, func(s string) bool { return !r.seen[file+" "+s] }) {
		return
	}
	for _, s := range shows {
		r.seen[file+" "+s] = true
	}
	o.SetManagedFields(nil)
	line, err := json.Marshal(o)
	if err != nil {
		panic(err) // it was received as JSON
	}
	r.kept[file] = append(r.kept[file], line)
}

// write stores the recorded objects in testdata.
func (r *witness) write() error {
	r.stop()
	r.wait.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for file, lines := range r.kept {
		if err := os.WriteFile(filepath.Join("testdata", file), append(bytes.Join(lines, []byte("\n")), '\n'), 0o600); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "recorded:\n%s\n", strings.Join(slices.Sorted(maps.Keys(r.seen)), "\n"))
	return nil
}
