package gateway

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A session flaps if it broke flapBreaks times within flapWindow. A restart of its rank breaks it only once.
const (
	flapBreaks = 3
	flapWindow = time.Minute
)

// flaps has the last times at which a session broke, the newest first.
type flaps [flapBreaks]time.Time

func (f *flaps) add(now time.Time) {
	copy(f[1:], f[:])
	f[0] = now
}

func (f *flaps) flapping(now time.Time) bool {
	oldest := f[len(f)-1]
	return !oldest.IsZero() && now.Sub(oldest) < flapWindow
}

// brokeLocked logs and counts the end of a connection. up: it was established; otherwise it was only a failed try.
func (p *Pool) brokeLocked(s *session, up bool, after time.Duration, err error) {
	if !up || p.ctx.Err() != nil {
		p.o.Log.Debug("cannot connect to a rank", "frontend", s.frontend, "error", err)
		return
	}
	now := time.Now()
	s.breaks.add(now)
	p.o.Metrics.breaks.WithLabelValues(s.frontend).Inc()
	switch {
	case status.Code(err) == codes.ResourceExhausted: // the message exceeds the receiver's limit: a bug on one side
		p.o.Log.Error("session to a rank broke because a message was too large", "frontend", s.frontend, "after", after, "error", err)
	case s.breaks.flapping(now):
		p.o.Log.Warn("session to a rank broke again, new requests go to other ranks", "frontend", s.frontend, "after", after,
			"breaks", flapBreaks, "within", now.Sub(s.breaks[flapBreaks-1]), "error", err)
	default:
		p.o.Log.Info("session to a rank broke, reconnecting", "frontend", s.frontend, "after", after, "error", err)
	}
}
