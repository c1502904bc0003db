package driver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Keys of the store.
const (
	keyIntent     = "intent"
	keyMembership = "membership"
	// keyTransitions: records of the newest completed transitions, for people; no decision depends on them.
	keyTransitions = "transitions"
)

const keptTransitions = 32

// Intent is written before any request to an agent; in state Permitted it is the permit record.
type Intent struct {
	Attempt uint64 `json:"attempt"`
	// Last attempt of the run that begins with Attempt; this record permits all of them. 0: there is no run.
	Last       uint64      `json:"last,omitempty"`
	FromEpoch  uint64      `json:"from_epoch"`
	TargetHash string      `json:"target_hash"` // of the last flip
	PlanHash   string      `json:"plan_hash"`
	State      IntentState `json:"state"`

	version uint64
}

// IntentState says how far an attempt may go.
type IntentState string

// States of an intent, in order; the last two are final.
const (
	Proposed  IntentState = "proposed"
	Permitted IntentState = "permitted" // it may flip
	Aborted   IntentState = "aborted"   // its attempt was aborted; the id is never reused
	Done      IntentState = "done"
)

func (d *Driver) propose(ctx context.Context, r *flipRun) (Intent, error) {
	var intent Intent
	version, err := store.Load(ctx, d.Store, keyIntent, &intent)
	if err != nil {
		return intent, err
	}
	intent = Intent{Attempt: max(intent.Attempt, intent.Last, r.truth.highestAttempt()) + 1, FromEpoch: r.truth.epoch(),
		TargetHash: short(r.flip.TargetHash), PlanHash: r.record.PlanHash, State: Proposed}
	if len(r.follow) > 0 {
		intent.Last = intent.Attempt + uint64(len(r.follow))
	}
	intent.version, err = store.Save(ctx, d.Store, keyIntent, version, intent)
	if err != nil {
		return intent, fmt.Errorf("record the intent: %w", err)
	}
	return intent, nil
}

// permit fails if another driver has written since propose and is now active. It fails with ErrAborted after an abort.
func (d *Driver) permit(ctx context.Context, intent Intent) error {
	return d.Abort.permit(func() error {
		intent.State = Permitted
		_, err := store.Save(ctx, d.Store, keyIntent, intent.version, intent)
		return err
	})
}

func (d *Driver) burned(ctx context.Context, attempt uint64) error {
	d.Abort.over()
	return d.setState(ctx, attempt, Aborted)
}

func (d *Driver) concluded(ctx context.Context, attempt uint64) error {
	d.Abort.over()
	return d.setState(ctx, attempt, Done)
}

// setState sets the state of the intent if it covers this attempt. A run is done only with its last attempt.
func (d *Driver) setState(ctx context.Context, attempt uint64, state IntentState) error {
	var intent Intent
	version, err := store.Load(ctx, d.Store, keyIntent, &intent)
	if err != nil || version == 0 || attempt < intent.Attempt || attempt > max(intent.Attempt, intent.Last) ||
		state == Done && attempt < intent.Last {
		return err
	}
	intent.State = state
	_, err = store.Save(ctx, d.Store, keyIntent, version, intent)
	return err
}

// saveMembership records the active layout, once no transition is in progress.
func (d *Driver) saveMembership(ctx context.Context, t *truth) error {
	if t.layout == nil {
		return nil
	}
	was, err := d.membership(ctx)
	if err != nil {
		return err
	}
	hash, err := layout.Hash(t.layout)
	if err != nil {
		return err
	}
	if was.Epoch > t.epoch() {
		return fmt.Errorf("the store is at epoch %d but the agents are at epoch %d; check whether the store belongs to another world", was.Epoch, t.epoch())
	}
	if was.version != 0 && was.Epoch == t.epoch() && was.Hash == short(hash) {
		return nil
	}
	now := was
	now.Epoch, now.Hash, now.Members, now.Repair = t.epoch(), short(hash), idsOf(t.layout), 0
	_, err = store.Save(ctx, d.Store, keyMembership, was.version, now)
	return err
}

// Bytes counts bytes by source, summed over ranks.
type Bytes struct {
	Local      uint64 `json:"local"`
	Shared     uint64 `json:"shared"`
	TCP        uint64 `json:"tcp"`
	Wire       uint64 `json:"wire"` // by a communication library
	Checkpoint uint64 `json:"checkpoint"`
	KV         uint64 `json:"kv"`
	KVAhead    uint64 `json:"kv_ahead"` // of KV: fetched while engines stepped, before the flips
}

// Seconds is the time by phase, on the driver's clock.
type Seconds struct {
	Plan    float64 `json:"plan"`
	Prepare float64 `json:"prepare"`
	Stage   float64 `json:"stage"`
	Flip    float64 `json:"flip"`
	Retire  float64 `json:"retire"`
}

// AgentSeconds is the time by phase: the slowest agent's, on its own clock.
type AgentSeconds struct {
	Prepare float64 `json:"prepare"`
	Stage   float64 `json:"stage"`
	Flip    float64 `json:"flip"`
}

// FlipRecord is the record of one flip. Those of a run have interim figures; only their sums are exact.
type FlipRecord struct {
	Kind         string       `json:"kind"`
	Epoch        uint64       `json:"epoch"`
	Attempt      uint64       `json:"attempt"`
	TargetHash   string       `json:"target_hash"`
	Bytes        Bytes        `json:"bytes"`
	Seconds      Seconds      `json:"seconds"`
	AgentSeconds AgentSeconds `json:"agent_seconds"`
	PeakBytes    uint64       `json:"peak_bytes"` // of weights: highest reported peak of a rank
}

// Record is the record of a transition. Planned bytes come from the plan; Bytes are the bytes that agents moved.
type Record struct {
	World string `json:"world"`
	Kind  string `json:"kind,omitempty"` // "repair"; empty: an Apply
	// Of a repair: removed members; seconds until all survivors were stopped and the fence was decided; seconds from
	// there until the survivors had the outcome; and whether the world ended instead.
	Lost []Lost `json:"lost,omitempty"`
	// Of a repair: why the answering members are stopped; 16 at most, causes at lost members first.
	Missed           []Missed `json:"missed,omitempty"`
	WaitSeconds      float64  `json:"wait_seconds,omitempty"`
	FenceSeconds     float64  `json:"fence_seconds,omitempty"`
	WorldEnded       string   `json:"world_ended,omitempty"` // why
	Ranks            int      `json:"ranks"`
	Mode             string   `json:"mode"`
	FromEpoch        uint64   `json:"from_epoch"`
	Epoch            uint64   `json:"epoch"`
	FromHash         string   `json:"from_hash"`
	TargetHash       string   `json:"target_hash"`
	PlanHash         string   `json:"plan_hash"`
	ExpertBytes      uint64   `json:"expert_bytes"`
	ExpertBoundBytes uint64   `json:"expert_bound_bytes"`
	DenseBytes       uint64   `json:"dense_bytes"`
	DenseBoundBytes  uint64   `json:"dense_bound_bytes"`
	LocalBytes       uint64   `json:"local_bytes"`
	CheckpointBytes  uint64   `json:"checkpoint_bytes"`
	// Highest peak of weights of any rank: by the plan, and as reported.
	PlannedPeakBytes uint64 `json:"planned_peak_bytes"`
	PeakBytes        uint64 `json:"peak_bytes"`
	// KV tokens that requests have reserved after the last flip: the maximum of a rank, and the mean of all ranks.
	KVMaxTokens  uint64       `json:"kv_max_tokens,omitempty"`
	KVMeanTokens uint64       `json:"kv_mean_tokens,omitempty"`
	Bytes        Bytes        `json:"bytes"`
	Seconds      Seconds      `json:"seconds"`
	TotalSeconds float64      `json:"total_seconds"`
	Retries      int          `json:"retries"`
	Flips        []FlipRecord `json:"flips"`
	PlannedFlips int          `json:"planned_flips"`
	Permits      int          `json:"permits"`         // recorded permits, each for one flip or a run of flips
	Calls        uint64       `json:"calls,omitempty"` // calls to agents; tangram-driver counts them
	Started      time.Time    `json:"started"`
	Ended        time.Time    `json:"ended"`
	Error        string       `json:"error,omitempty"`
}

func (r *Record) planned(result *planner.Result, took time.Duration) {
	plan := result.Plan
	// A plan always marshals: the planner made it, it was not received.
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(plan)
	hash := sha256.Sum256(wire)
	r.PlanHash, r.FromHash, r.TargetHash = short(hash[:]), short(plan.FromHash), short(plan.FinalHash)
	r.FromEpoch, r.Epoch, r.PlannedFlips = plan.FromEpoch, plan.FromEpoch, len(plan.Flips)
	cost := plan.GetCost()
	r.ExpertBytes, r.ExpertBoundBytes = cost.GetExpertBytes(), cost.GetExpertBoundBytes()
	r.DenseBytes, r.DenseBoundBytes = cost.GetDenseBytes(), cost.GetDenseBoundBytes()
	r.LocalBytes, r.CheckpointBytes = cost.GetLocalBytes(), cost.GetCheckpointBytes()
	r.Seconds.Plan = took.Seconds()
	for _, flip := range plan.Flips {
		for _, part := range flip.Parts {
			r.PlannedPeakBytes = max(r.PlannedPeakBytes, part.PeakBytes)
		}
	}
}

func (r *Record) add(f FlipRecord) {
	r.Flips = append(r.Flips, f)
	r.Epoch = f.Epoch
	r.PeakBytes = max(r.PeakBytes, f.PeakBytes)
	r.Bytes.Local += f.Bytes.Local
	r.Bytes.Shared += f.Bytes.Shared
	r.Bytes.TCP += f.Bytes.TCP
	r.Bytes.Wire += f.Bytes.Wire
	r.Bytes.Checkpoint += f.Bytes.Checkpoint
	r.Bytes.KV += f.Bytes.KV
	r.Bytes.KVAhead += f.Bytes.KVAhead
	r.Seconds.Prepare += f.Seconds.Prepare
	r.Seconds.Stage += f.Seconds.Stage
	r.Seconds.Flip += f.Seconds.Flip
	r.Seconds.Retire += f.Seconds.Retire
}

func (r *Record) finish(err error) {
	r.Ended = time.Now()
	r.TotalSeconds = r.Ended.Sub(r.Started).Seconds()
	if err != nil {
		r.Error = err.Error()
	}
}

// minus subtracts an earlier count.
func (b Bytes) minus(o Bytes) Bytes {
	return Bytes{Local: b.Local - o.Local, Shared: b.Shared - o.Shared, TCP: b.TCP - o.TCP, Wire: b.Wire - o.Wire,
		Checkpoint: b.Checkpoint - o.Checkpoint, KV: b.KV - o.KV, KVAhead: b.KVAhead - o.KVAhead}
}

func (s AgentSeconds) minus(o AgentSeconds) AgentSeconds {
	return AgentSeconds{Prepare: s.Prepare - o.Prepare, Stage: s.Stage - o.Stage, Flip: s.Flip - o.Flip}
}

// measured sums the bytes that ranks report for these attempts (in a run, each reports its total so far). It also
// returns the slowest times and the highest peak of a rank.
func measured(first, last uint64, latest map[int]*tangramv1.StatusResponse) (Bytes, AgentSeconds, uint64) {
	var b Bytes
	var s AgentSeconds
	peak := uint64(0)
	for _, a := range latest {
		for _, r := range a.Ranks {
			t := r.GetTransition()
			if t.GetAttempt() < first || t.GetAttempt() > last {
				continue
			}
			b.Local += t.BytesProcess
			b.Shared += t.BytesNode
			b.TCP += t.BytesTcp
			b.Wire += t.BytesComm
			b.Checkpoint += t.BytesCheckpoint
			b.KV += t.KvBytes
			b.KVAhead += t.KvAheadBytes
			peak = max(peak, t.PeakBytes)
			s.Prepare, s.Stage, s.Flip = max(s.Prepare, t.PrepareSeconds), max(s.Stage, t.StageSeconds), max(s.Flip, t.FlipSeconds)
		}
	}
	return b, s, peak
}

// KVBound is the multiple of the mean load up to which a rank keeps requests whose KV a flip has to move anyway. Above
// it, the flip redistributes them. The engines plan with the same value, kv::kLopsided.
const KVBound = 1.25

// reserved returns the reserved KV tokens of the members that stay: the maximum of a rank, and the mean.
func reserved(members map[string]bool, latest map[int]*tangramv1.StatusResponse) (most, mean uint64) {
	ranks := uint64(0)
	for _, a := range latest {
		for _, r := range a.GetRanks() {
			if members[r.GetMember().GetId()] {
				tokens := r.GetEngine().GetKvReservedTokens()
				ranks, mean, most = ranks+1, mean+tokens, max(most, tokens)
			}
		}
	}
	return most, mean / max(ranks, 1)
}

// SaveTo returns a Hooks.Save that appends the record to the store's list of transitions. It drops the oldest, because
// the store of a long-lived world must not grow.
func SaveTo(s store.Store) func(context.Context, *Record) error {
	return func(ctx context.Context, record *Record) error {
		for {
			var list []*Record
			version, err := store.Load(ctx, s, keyTransitions, &list)
			if err != nil {
				return err
			}
			list = append(list, record)
			_, err = store.Save(ctx, s, keyTransitions, version, list[max(0, len(list)-keptTransitions):])
			if !errors.Is(err, store.ErrConflict) {
				return err
			} // another driver has written its own record
		}
	}
}
