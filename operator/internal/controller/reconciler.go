// Package controller reconciles MoEDeployments: see README.md.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	"tangram.dev/operator/pkg/layout"

	api "tangram.dev/api/v1alpha2"
)

// +kubebuilder:rbac:groups=serving.tangram.dev,resources=moedeployments,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=serving.tangram.dev,resources=moedeployments/status;moedeployments/finalizers,verbs=get;patch;update
// +kubebuilder:rbac:groups=serving.tangram.dev,resources=layouttransitions,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=serving.tangram.dev,resources=layouttransitions/status,verbs=get;patch;update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;update;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch;update;delete
// +kubebuilder:rbac:groups="",resources=services;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaimtemplates,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;patch;update
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// Images are the images of the pods that the operator creates.
type Images struct {
	Agent, Gateway string
	// Operator is the operator's own image, for pods that read checkpoints.
	Operator string
	// Engine is the reference engine; VLLM is the engine vllm and the text server.
	Engine, VLLM string
	// AgentGPU is the agent for worlds on GPUs; empty: Agent.
	AgentGPU string
}

// agent returns the agent image for the ranks of d.
func (i Images) agent(d *api.MoEDeployment) string {
	if d.OnGPU() && i.AgentGPU != "" {
		return i.AgentGPU
	}
	return i.Agent
}

// engine returns the engine image of d.
func (i Images) engine(d *api.MoEDeployment) string {
	switch {
	case d.Spec.Engine.Image != "":
		return d.Spec.Engine.Image
	case d.Spec.Engine.Name == api.EngineVLLM:
		return i.VLLM
	}
	return i.Engine
}

// Reconciler reconciles MoEDeployments.
type Reconciler struct {
	client.Client
	APIReader client.Reader // live
	Recorder  events.EventRecorder
	Log       *slog.Logger
	Images    Images
	Worlds    *world.Worlds
	// OwnNamespace is the operator's namespace: network policies let only it connect to agents. Empty: any namespace.
	OwnNamespace string
	// NodeFolder on each node holds one folder per world whose pods share memory there. Empty: DefaultNodeFolder.
	NodeFolder string
	// KeepEnded is how long the operator waits for a stopped container to restart in place. It also keeps pods that
	// ended soon after their start this long for inspection, and certificates without a pod. 0: 20 s.
	KeepEnded time.Duration
	// DeleteWithin is the time until a deletion removes the finalizer; owner references then delete the rest. 0: 30 s.
	DeleteWithin time.Duration
	// Dial connects to agents of a world; nil: over mTLS.
	Dial func(*api.MoEDeployment, *pki.Identity) world.Dialer
	// Certificates are the lifetimes of certificates.
	Certificates Certificates

	metrics  *Metrics
	news     inbox    // queue of the controller; running worlds add themselves, and none is ever dropped
	urgent   inbox    // the same for the controller of repairs
	drivers  sync.Map // identities that the operator presents to agents, by UID of the MoEDeployment
	opened   sync.Map // UID of the MoEDeployment whose world was opened last, by namespace and name
	doomed   sync.Map // UID of the MoEDeployment that was dissolved, by namespace and name
	readers  sync.Map // read the load from the gateways of worlds, by UID of the MoEDeployment
	asked    askers   // read the load of worlds that this operator serves metrics for but does not lead
	advices  sync.Map // policies of worlds in mode Auto, by UID of the MoEDeployment
	podNames podNames // names of the pods of ranks
	runs     runNames // the running LayoutTransition, by UID of the MoEDeployment
	pauses   pauses   // after conflicts, by namespace and name
	applied  sync.Map // result of the last server-side apply: by UID of the MoEDeployment, a map by kind and name
}

// SetUp adds the reconciler to a manager.
func (r *Reconciler) SetUp(mgr ctrl.Manager, metrics *Metrics) error {
	r.Client, r.APIReader, r.metrics = mgr.GetClient(), mgr.GetAPIReader(), metrics
	r.Recorder = mgr.GetEventRecorder("tangram-operator")
	if r.Dial == nil {
		r.Dial = dialer
	}
	if r.KeepEnded == 0 {
		r.KeepEnded = 20 * time.Second
	}
	if r.NodeFolder == "" {
		r.NodeFolder = DefaultNodeFolder
	}
	if r.DeleteWithin == 0 {
		r.DeleteWithin = 30 * time.Second
	}
	if err := index(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := errors.Join(mgr.Add(manager.RunnableFunc(r.endLoads)), mgr.Add(beside(r.endAsked))); err != nil {
		return err
	}
	// Repairs have their own workers: a broken world must not queue behind other worlds' objects, which may wait for
	// the API server.
	if err := ctrl.NewControllerManagedBy(mgr).Named("repairs").
		WatchesRawSource(source.Func(r.urgent.open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, SkipNameValidation: ptr.To(true)}).
		Complete(reconcile.Func(r.reconcileRepair)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&api.MoEDeployment{}).
		Owns(&corev1.Pod{}).Owns(&corev1.Service{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Owns(&corev1.ServiceAccount{}).
		Owns(&appsv1.Deployment{}).Owns(&policyv1.PodDisruptionBudget{}).Owns(&networkingv1.NetworkPolicy{}).Owns(&resourcev1.ResourceClaimTemplate{}).
		Owns(&api.LayoutTransition{}).
		WatchesRawSource(source.Func(r.news.open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, SkipNameValidation: ptr.To(true)}).Complete(r)
}

// workers is the number of workers per controller.
const workers = 4

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// inbox is a controller's queue, once the controller runs. It holds each name at most once, and put does not block.
type inbox struct {
	mu sync.Mutex
	q  queue
}

func (i *inbox) open(_ context.Context, q queue) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.q = q
	return nil
}

func (i *inbox) put(key types.NamespacedName) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.q != nil {
		i.q.Add(reconcile.Request{NamespacedName: key})
	}
}

// Reconcile reconciles one world. It reads the state and takes the next steps; it never waits.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	d := &api.MoEDeployment{}
	if err := r.Get(ctx, request.NamespacedName, d); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if d.DeletionTimestamp != nil {
		return r.delete(ctx, d)
	}
	if uid, ends := r.doomed.Load(request.NamespacedName); ends && uid == d.UID {
		return r.namespaceEnds(ctx, d)
	}
	if before := d.DeepCopy(); complete(d) {
		if err := r.Patch(ctx, d, locked(before)); err != nil {
			return r.again(request.NamespacedName, err)
		}
	}
	done, why, err := r.sized(ctx, d)
	if err == nil && !done {
		return reconcile.Result{RequeueAfter: why.again}, r.writeStatus(ctx, d, why)
	}
	result := reconcile.Result{}
	if err == nil {
		result, err = r.reconcile(ctx, d)
	}
	if apierrors.IsConflict(err) {
		return r.again(request.NamespacedName, err)
	}
	r.pauses.forget(request.NamespacedName)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return r.namespaceEnds(ctx, d)
	}
	if why := refused(err); why != nil {
		pods, listing := r.pods(ctx, d)
		if listing != nil {
			return reconcile.Result{}, listing
		}
		// No event reports that the foreign object is deleted or that the API server would accept ours.
		return reconcile.Result{RequeueAfter: 10 * time.Second}, r.writeStatus(ctx, d, &scene{pods: pods, refused: why})
	}
	return result, err
}

// complete adds the finalizer and the number of replicas if they are missing. A manifest without spec.replicas leaves
// the number to the autoscaler, so the current one stays; the subresource scale needs a value to read.
func complete(d *api.MoEDeployment) bool {
	changed := controllerutil.AddFinalizer(d, api.Finalizer)
	if d.Spec.Replicas == 0 {
		n := max(cmp.Or(d.Status.DesiredReplicas, 1), ptr.Deref(d.Spec.MinReplicas, 1))
		d.Spec.Replicas, changed = min(n, ptr.Deref(d.Spec.MaxReplicas, n)), true
	}
	if m, st := &d.Spec.Memory, d.Status.Memory; st != nil { // a manifest without these fields replaced the object
		if m.Weights.IsZero() && st.WeightsBytes > 0 {
			m.Weights, changed = *resource.NewQuantity(st.WeightsBytes, resource.BinarySI), true
		}
		if m.KVCache.IsZero() && st.KVCacheBytes > 0 {
			m.KVCache, changed = *resource.NewQuantity(st.KVCacheBytes, resource.BinarySI), true
		}
	}
	return changed
}

// again requeues after a conflict, which means that the cache lags. The pauses grow with each conflict.
func (r *Reconciler) again(key types.NamespacedName, err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: r.pauses.next(key)}, nil
	}
	return reconcile.Result{}, err
}

func (r *Reconciler) reconcile(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	s := &scene{}
	var err error
	if s.pods, err = r.pods(ctx, d); err != nil {
		return reconcile.Result{}, err
	}
	mine := owned(d, s.pods)
	// An existing world continues even if its namespace no longer allows sharing; a new world does not start.
	err = r.checkSharing(ctx, d)
	if s.withheld = refused(err); err != nil && (s.withheld == nil || len(mine) == 0 && d.Status.Epoch == 0) {
		return reconcile.Result{}, err
	}
	authority, err := r.authority(ctx, d)
	var without *issuerError
	if errors.As(err, &without) { // no event reports a new issuer
		s.unrenewed, s.refused = without, &refusal{api.ReasonIssuerMissing, fmt.Sprintf("The issuer of certificates cannot be used: %v. Create or correct the Secret.", without)}
		return reconcile.Result{RequeueAfter: min(r.loadTime(), 10*time.Second)}, r.writeStatus(ctx, d, s)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	identity, err := r.driver(d, authority)
	if err != nil {
		return reconcile.Result{}, err
	}
	w := r.open(d, identity)
	reached := endpoints(mine)
	w.SetEndpoints(reached, true)
	w.SetRebalance(rebalanceSettings(d))
	if s.seen = w.Snapshot(); len(reached) > 0 {
		k, err := r.keeper(d, w, s)
		if err != nil {
			return reconcile.Result{}, err
		}
		k.Repair(&s.seen) // before anything else: the world serves no request until it is repaired
	}
	if err := r.shared(ctx, d); err != nil {
		return reconcile.Result{}, err
	}
	if s.gateways, err = r.gateway(ctx, d, authority, s); err != nil {
		return reconcile.Result{}, err
	}
	reader, gateways, err := r.loadOf(ctx, d, identity)
	if err != nil {
		return reconcile.Result{}, err
	}
	var told time.Duration
	s.load, told = nextLoad(d.Status.Load, reader, gateways)
	if s.transitions, err = r.transitions(ctx, d); err != nil {
		return reconcile.Result{}, err
	}
	decides, err := r.auto(ctx, d, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	told = sooner(told, decides)
	if d.SharesNodeMemory() {
		told = sooner(told, namespaceAgain)
	}
	for i := range mine {
		if mine[i].DeletionTimestamp != nil {
			continue
		}
		p, again, err := r.problemOf(ctx, &mine[i])
		if err != nil {
			return reconcile.Result{}, err
		}
		if p != nil {
			s.problems = append(s.problems, *p)
		}
		s.again = sooner(s.again, again)
	}
	told = sooner(told, s.again)
	wait, err := r.act(ctx, d, authority, w, mine, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	prune, err := r.keepCertificates(ctx, d, authority, mine) // of pods that were not created just now
	if err != nil {
		return reconcile.Result{}, err
	}
	if wait == 0 {
		wait = prune
	}
	if err := r.keepConfigs(ctx, d, mine); err != nil {
		return reconcile.Result{}, err
	}
	renewal, unrenewed := r.renew(ctx, d, authority, s)
	if s.unrenewed = unrenewed; apierrors.IsConflict(unrenewed) { // not worth reporting: the next try follows
		return reconcile.Result{}, unrenewed
	}
	if errors.As(unrenewed, &without) { // the status reports it, and a timer checks again
		unrenewed = nil
	}
	again, err := r.tidy(ctx, d, s.transitions, s.seen.Running != nil)
	if err != nil {
		return reconcile.Result{}, err
	}
	feels, err := r.feel(ctx, s.transitions, reader)
	if err != nil {
		return reconcile.Result{}, err
	}
	told = sooner(told, feels)
	if err := r.budget(ctx, d, &s.seen); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: sooner(sooner(sooner(wait, again), renewal), told)}, errors.Join(r.writeStatus(ctx, d, s), unrenewed)
}

// act takes the next steps for the observed state. It returns when to reconcile again without an event.
func (r *Reconciler) act(ctx context.Context, d *api.MoEDeployment, a *authority, w *world.World, pods []corev1.Pod, s *scene) (time.Duration, error) {
	k, err := r.keeper(d, w, s)
	if err != nil {
		return 0, err
	}
	facts := keeper.Facts{Agents: len(pods) > 0 && len(endpoints(pods)) > 0}
	if facts.Pods, err = r.facts(ctx, d, pods, &s.seen); err != nil {
		return 0, err
	}
	// Other agents, the pods' label (it outlives an operator) or the records show that a layout is active.
	s.silent = silentMembers(pods, &s.seen)
	facts.Unknown = len(s.silent) > 0 || s.seen.Unseen
	k.Wanted.Intent = intent(d, facts.Pods, layoutPods(s.seen.Layout))
	k.Wanted.Held = s.hold(d, w, r.runs.of(d.UID)) || k.Wanted.Held
	round := k.Decide(s.seen, facts)
	s.unknown = !round.Decided && facts.Unknown && s.seen.Layout == nil // members may still serve: change nothing
	if !round.Decided {
		return round.Again, nil
	}
	s.decision = round.Decision
	if err := r.label(ctx, d, pods, round.Layout, s.decision.Standing); err != nil {
		return 0, err
	}
	for _, x := range s.decision.Delete {
		if err := r.deletePod(ctx, d, x); err != nil {
			return 0, err
		}
	}
	if err := r.createPods(ctx, d, a, s); err != nil {
		return 0, err
	}
	k.Act(&round)
	s.seen = round.Seen
	if round.Again == 0 && len(s.problems) > 0 {
		return r.KeepEnded / 2, nil // an ended pod is replaced by time
	}
	return round.Again, nil
}

// keeper returns the keeper of a deployment's world.
func (r *Reconciler) keeper(d *api.MoEDeployment, w *world.World, s *scene) (*keeper.Keeper, error) {
	k := &keeper.Keeper{World: w, Wanted: keeper.Wanted{Standby: int(d.Spec.StandbyReplicas), Copies: true, SpareBanks: uint32(d.Spec.Tuning.SpareBanks),
		PauseSteps: d.Spec.Transition.Strategy == api.StrategyFast, Limits: limits(d), Rebalance: d.Spec.Experts.Rebalance.Mode == api.RebalanceApply}}
	if err := want(&k.Wanted, d, s); err != nil {
		return nil, reconcile.TerminalError(err) // the API server rejects it, unless its CRD has another version
	}
	k.Record = recorders{r, d, inWords(wantedMode(d), ranges.OfSpec(d.DesiredLayers()))}
	if s.misfit != nil && s.seen.Layout != nil {
		k.Record = recorders{r, d, inWords(modeOf(d, s.seen.Layout), layout.RangesOf(s.seen.Layout))}
	}
	return k, nil
}

// intent describes the goal in one line: a transition of another intent does not continue.
func intent(d *api.MoEDeployment, pods []fleet.Pod, inLayout []string) string {
	var going []string
	for _, p := range pods {
		if (p.Deleting || p.Ended) && slices.Contains(inLayout, p.UID) {
			going = append(going, p.UID)
		}
	}
	mode := string(wantedMode(d))
	if wantedMode(d) == api.ModeHybrid {
		mode += fmt.Sprint([]layout.Range(ranges.OfSpec(d.DesiredLayers()))) // all ranges
	}
	return fmt.Sprintf("%d %s %t %t %d %v", d.DesiredReplicas(), mode, d.Spec.Suspend, d.Spec.Experts.Rebalance.Mode == api.RebalanceApply, ptr.Deref(d.Spec.Experts.Redundant, api.RedundantExperts{}), going)
}

// open returns the running world of d, and starts it if needed.
func (r *Reconciler) open(d *api.MoEDeployment, i *pki.Identity) *world.World {
	if w := r.Worlds.Find(d.UID); w != nil {
		return w
	}
	key := client.ObjectKeyFromObject(d)
	if was, there := r.opened.Swap(key, d.UID); there && was != d.UID {
		r.end(was.(types.UID)) // Swap stored this type
	}
	return r.Worlds.Open(d.UID, worldName(d), r.Dial(d, i), r.records(d), func() { r.wake(key) })
}

// wake queues a MoEDeployment for its controller, which runs because it opened the world. It also queues the repair, if
// that controller runs already: both start repairs.
func (r *Reconciler) wake(key types.NamespacedName) {
	r.news.put(key)
	r.urgent.put(key)
}

// forget removes the state of a MoEDeployment that no longer exists, with or without its finalizer.
func (r *Reconciler) forget(key types.NamespacedName) {
	if uid, there := r.opened.LoadAndDelete(key); there {
		r.end(uid.(types.UID)) // Swap stored this type
	}
	r.doomed.Delete(key)
	r.pauses.forget(key)
	r.metrics.forget(key)
}

// end stops the background work for a MoEDeployment, and forgets the objects that were applied for it.
func (r *Reconciler) end(uid types.UID) {
	r.Worlds.Dissolve(uid, "the MoEDeployment no longer exists")
	r.applied.Delete(uid)
	r.endLoad(uid)
	r.advices.Delete(uid)
	r.podNames.forget(uid)
	r.runs.set(uid, "")
	r.drivers.Delete(uid)
}

// sooner returns the shorter of two waits; 0 means none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// owned returns the pods of a list that d controls; the list was selected by label.
func owned(d *api.MoEDeployment, pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !metav1.IsControlledBy(&p, d) })
}

// event reports an event about a deployment and a related object.
func (r *Reconciler) event(d *api.MoEDeployment, related runtime.Object, kind, reason, action, format string, args ...any) {
	r.Recorder.Eventf(d, related, kind, reason, action, "%s", clip(fmt.Sprintf(format, args...), 1000))
}

func typesUID(uid string) types.UID { return types.UID(cmp.Or(uid, "none")) }
