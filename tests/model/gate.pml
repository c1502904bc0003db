/* The gate, and the recovery from a broken step (docs/architecture.md, 4.1 and 8): three ranks, an operator that flips
 * them, one failure, and one or two leaders that fence and repair. README.md has the parts that are not modelled, the
 * macro that removes each rule, and the commands. A vote is called a word here.
 *
 * MEMBERS(e): mask of the members of epoch e. FLIPS: number of flips. ATTEMPTS: limit of the operator's attempts.
 * FAULT: 0 none, 1 one rank dies, 2 one rank is cut off from its peers, lives, and may heal.
 * LEADERS: drivers that repair. Any process may pause at any point, for any time.
 */
#ifdef TRACE /* a random run prints its events, for the code to replay (README.md, "Replay") */
#define TELL(...) __VA_ARGS__
#define RANK(k) printf("@rank %d %d %d %d %d %d %d %d %d %d %d\n", k, up[k], ep[k], gen[k], MEM(k), stopped[k], staged[k], armed[k], mending[k], mayMend[k], held[k])
#define LOOK RANK(0); RANK(1); RANK(2); printf("@look %d %d %d %d %d %d %d %d\n", SCENARIO, view, reach, survivors, fences, stands[fences], leads[1], leads[2]); \
             printf("@rules %d %d %d %d\n", to, by, alive, old)
/* Waits for x, or for a random time. */
#define WHILE(x) do :: true :: true :: true :: true :: true :: true :: true :: true :: true :: true -> break :: x -> break od; /* a while */
#define IS(i) printf("@is %d %d %d\n", i, armed[i] || mayMend[i], latched[i])
#else
#define TELL(...)
#endif
#define N 3
#define IN(mask, i) (((mask) >> (i)) & 1)
#define EACH(P) (P(0) && P(1) && P(2))
#define SOME(P) (P(0) || P(1) || P(2))

#ifdef FOLLOW /* a part of a history of agents: follow.pml */
#define FAULT 1
#define LEADERS 2
#define MOST_FENCES 15
#include "follow.pml"
#elif SCENARIO == 0 /* two flips of the same members, no failure */
#define MEMBERS(e) 7
#define FLIPS 2
#define ATTEMPTS 3
#define FAULT 0
#define LEADERS 0
#elif SCENARIO == 1 /* a rank dies around two flips */
#define MEMBERS(e) 7
#define FLIPS 2
#define ATTEMPTS 2
#define FAULT 1
#define LEADERS 1
#elif SCENARIO == 2 /* a rank is falsely suspected, two leaders */
#define MEMBERS(e) 7
#define FLIPS 0
#define ATTEMPTS 0
#define FAULT 2
#define LEADERS 2
#elif SCENARIO == 3 /* rank 2 joins, a rank dies */
#define MEMBERS(e) ((e) == 0 -> 3 : 7)
#define FLIPS 1
#define ATTEMPTS 2
#define FAULT 1
#define LEADERS 1
#elif SCENARIO == 4 /* rank 0 leaves, a rank dies */
#define MEMBERS(e) ((e) == 0 -> 7 : 6)
#define FLIPS 1
#define ATTEMPTS 2
#define FAULT 1
#define LEADERS 1
#elif SCENARIO == 6 /* a rank is falsely suspected around a flip */
#define MEMBERS(e) 7
#define FLIPS 1
#define ATTEMPTS 2
#define FAULT 2
#define LEADERS 1
#elif SCENARIO == 7 /* one of two dies around a flip, two leaders */
#define MEMBERS(e) 3
#define FLIPS 1
#define ATTEMPTS 2
#define FAULT 1
#define LEADERS 2
#elif SCENARIO == 8 /* one of three */
#define MEMBERS(e) 7
#define FLIPS 1
#define ATTEMPTS 1
#define FAULT 1
#define LEADERS 2
#elif SCENARIO == 9 /* two flips under one permit, and an abort between them */
#define MEMBERS(e) 7
#define FLIPS 2
#define ATTEMPTS 3
#define RUN
#define FAULT 0
#define LEADERS 0
#elif SCENARIO == 10 /* the same, and a rank dies; one attempt, so no flip follows an abort */
#define MEMBERS(e) 7
#define FLIPS 2
#define ATTEMPTS 1
#define RUN
#define FAULT 1
#define LEADERS 1
#else /* 5: a world of two is partitioned, with a leader on each side */
#define MEMBERS(e) 3
#define FLIPS 0
#define ATTEMPTS 0
#define FAULT 2
#define LEADERS 2
#endif
#ifndef FOLLOW
#define MAX_FENCES LEADERS
#define MOST_FENCES 2
#define HEARS(k) (cut != k) /* k receives from its peers */
#define CUTS false
#define SEES (cut == N) /* a leader reaches all ranks */
#define FAILS !failed
#define ONCE failed = true
#define OF_CONCERN(k) true
#define NO(k)
#endif
#if SCENARIO >= 6 && SCENARIO != 9 /* too many states */
#define MAY_FAIL false
#else
#define MAY_FAIL (FLIPS > 0)
#endif

/* The claims. -DONLY=name checks only one of them. */
#ifndef ONLY
#define ONLY 0
#endif
#define COMPLETE 1
#define SAME_EPOCH 2
#define ONE_WORLD 3
#define NOT_BACK 4
#define RULED 5
#define FOLLOWS 6
#define MENDS 7
#define ONE_ANSWER 8
#define FEWER 9
#define KEPT 10
#define NEVER_STUCK 11
#define GOES_ON 12
#define RETIRES 13
#ifndef FOLLOW /* then agent/simulation/checker.h checks the claims on the agents */
#define CLAIM(name, x) assert((ONLY != 0 && ONLY != name) || (x))
#else
#define CLAIM(name, x) skip
#endif

/* A rank: an agent and its engine. */
bool up[N] = true;
bool stopped[N];       /* it reports that it abandoned its step */
byte ep[N];            /* its active epoch */
byte gen[N];           /* fence whose repair led to its layout; 0: a planned flip did */
byte staged[N];        /* planned attempt whose pieces it has verified; 0: none */
bool armed[N];         /* it is permitted to flip that attempt */
bool latched[N];       /* it voted, and the result is not known */
bool pull[N];          /* all votes were equal: this exchange is "my KV is pulled" */
byte pos[N];           /* its position in the exchange, see below */
byte word[N], next[N]; /* its message in this exchange, and in the next one */
byte mending[N];       /* repair that it has staged, by number of the fence; 0: none */
bool mayMend[N];       /* it is permitted to flip that repair */
bool held[N];          /* a leader decides: it must not flip a repair before it knows the outcome */
#ifdef RUN
byte walks[N];         /* last epoch to which it continues by itself, under the permit of the first flip; 0: none */
byte steps[N];         /* whole steps in its active epoch, counted up to 1 */
bool begun[N];         /* the previous flip's old places are freed; the next flip's pieces are not verified yet */
#define HALT(k) walks[k] = 0; begun[k] = false
#define STEPPED(k) steps[k] = 1
#define ENTERED(k) steps[k] = 0
#else
#define HALT(k) skip
#define STEPPED(k) skip
#define ENTERED(k) skip
#endif
byte cut = N;          /* the rank that reaches none of its peers; N: none */

/* pos: 0 has sent nothing, 1 has sent its message, 2 has received all, 3 has received all and sent its next message.
 * When all members have received all, every pos drops by two. So no rank is ahead by more than one exchange. */
#define STAY 1
#define GO 2
#define FAIL 3 /* "my KV is not pulled", or has no room: all decline */

/* Records in the API server. */
byte version;          /* of `membership`; it changes with every fence */
byte survivors = 7;    /* of the last fence */
byte fences;           /* written so far */
byte proposed;         /* `intent`: repair that is proposed, and neither permitted nor withdrawn */

byte world[MOST_FENCES + 1];         /* of fence f: its survivors, who are the members of its repair's layout */
byte stands[MOST_FENCES + 1];        /* of fence f: the epoch of its survivors */
byte words[MOST_FENCES + 1];         /* of repair f: ranks that have voted */
byte leads[3];         /* planned attempt that leads to epoch e */
byte late;             /* attempt whose permits are in transit, or lost */

bool failed = !MAY_FAIL; /* the one pull that may fail has failed */

/* For assertions only. */
byte top;              /* newest repair in whose layout a step was emitted */
byte withdrew[N];      /* attempt that an abort withdrew at the rank */
bool over;             /* too few survive: the world starts again from the checkpoint */

#define MEM(i) (gen[i] > 0 -> world[gen[i]] : (IN(MEMBERS(ep[i]), i) -> MEMBERS(ep[i]) : 0))
#define KNOWN(k) IN(survivors, k)

/* --- a rank ------------------------------------------------------------------------------ */

#define MATE(j) IN(MEM(i), j)
#define HEARD(j) (!MATE(j) || (gen[j] == gen[i] && pos[j] > 0))
#define SAYS_GO(j) (!MATE(j) || word[j] == GO)
#define FAILED(j) (MATE(j) && word[j] == FAIL)
#ifdef NO_ALL_PULLED /* a rank whose own KV is pulled flips */
#define NOT_PULLED word[i] == FAIL
#else
#define NOT_PULLED SOME(FAILED)
#endif
#define SAID_PULLED (pull[i] && ((pos[i] == 1 && word[i] == GO) || (pos[i] == 3 && next[i] == GO)))
#define SILENT(j) (j != i && MATE(j) && \
                   (!up[j] || gen[j] > gen[i] || (gen[j] == gen[i] && stopped[j]) || (gen[j] < gen[i] && (held[j] || mending[j] != gen[i])) || CUTS || !HEARS(i) || !HEARS(j)))
#define HEARD_OR_SILENT(j) (HEARD(j) || SILENT(j))
#define GO_OR_SILENT(j) (SAYS_GO(j) || SILENT(j))

#ifdef NO_ABANDON_BEFORE_ANSWER
#define AT_WORK (up[i] && MEM(i) != 0)
#else
#define AT_WORK (up[i] && MEM(i) != 0 && !stopped[i])
#endif
#if defined(NO_ALL_WORDS) /* an active mask: ranks that do not answer do not count */
#define ALL_GO (EACH(GO_OR_SILENT) && word[i] == GO)
#define EXCHANGED (EACH(HEARD) || (EACH(HEARD_OR_SILENT) && ALL_GO))
#elif defined(NO_DISCARD)
#define ALL_GO EACH(SAYS_GO)
#define EXCHANGED EACH(HEARD_OR_SILENT)
#else
#define ALL_GO EACH(SAYS_GO)
#define EXCHANGED EACH(HEARD)
#endif

#define SAME_LAYOUT(j) (!MATE(j) || (gen[j] == gen[i] && ep[j] == ep[i]))
inline emit(i) {
    CLAIM(COMPLETE, EACH(HEARD));                                /* invariant 1: no contribution is missing */
    CLAIM(SAME_EPOCH, EACH(SAME_LAYOUT));                        /* invariant 2 */
    CLAIM(ONE_WORLD, gen[i] >= top);                             /* no step of an older world after one of a newer */
    top = gen[i];
    STEPPED(i)
}

inline enter(k, e) {
    ENTERED(k);
    ep[k] = e; staged[k] = 0; armed[k] = false; latched[k] = false; pull[k] = false
}

inline mended(k, f) {
    HALT(k); ENTERED(k);
    gen[k] = f; ep[k] = stands[f] + 1;
    staged[k] = 0; armed[k] = false; latched[k] = false; pull[k] = false;
    pos[k] = 0; word[k] = 0; next[k] = 0; mending[k] = 0; mayMend[k] = false; held[k] = false; stopped[k] = false
}

/* A flip of rank i to epoch e binds these ranks: each can follow, and has not answered "aborted". */
#define CONCERNS(k, e) IN(MEMBERS(e) | MEMBERS(e - 1), k)
#define CAN_FOLLOW(k) (!CONCERNS(k, e) || ep[k] >= e || \
                    (staged[k] == leads[e] && (latched[k] || !IN(MEMBERS(e - 1), k))))
#define IS_NOT_BACK(k) (withdrew[k] == 0 || withdrew[k] != leads[e])
inline flip(i, e) {
    CLAIM(NOT_BACK, EACH(IS_NOT_BACK));                          /* invariant 3: no rank answered "aborted" */
    CLAIM(RULED, fences == 0 || !KNOWN(i));                      /* invariant 3: no survivor flips by itself */
    CLAIM(FOLLOWS, fences > 0 || EACH(CAN_FOLLOW));              /* invariants 1 and 3: all have the epoch's pieces */
    enter(i, e)
}

/* Rank k does not need the old places of rank i's last flip: it has flipped too, or cannot continue. */
#define CAME(k) (!MATE(k) || !up[k] || stopped[k] || gen[k] != gen[i] || ep[k] >= ep[i])
#ifdef NO_FIRST_STEP /* its own flip is enough, without a step */
#define STEPS_ENOUGH 1
#else
#define STEPS_ENOUGH (steps[i] >= 1)
#endif
#ifdef NO_VERIFIED_WORD /* a flip that the run has begun counts as verified */
#define VERIFIES 0
#else
#define VERIFIES leads[ep[i] + 1]
#endif

#define BEHIND(k) (MEM(k) != 0 && gen[k] == gen[i] && pos[k] < 2 && \
                   (gen[i] > 0 || IN(MEMBERS(ep[i]), k) || (up[k] && !stopped[k]))) /* a lost leaver delays no rank */
#define LAGS(k) (BEHIND(k) && ep[k] == 0) /* still in the exchange of the flip, where a joiner has no vote */
#define WORD_OUT(k) (!IN(world[mending[i]], k) || IN(words[mending[i]], k))
#define CAN_MEND(k) (!IN(world[mending[i]], k) || !up[k] || mending[k] == mending[i] || gen[k] == mending[i])
#define FLIPPED_MEMBER(k) (k != i && up[k] && IN(MEMBERS(0), k) && ep[k] > 0 && gen[k] == 0)
#define PERMITTED(k) (k != i && HEARS(k) && up[k] && ((armed[k] && staged[k] == staged[i]) || \
                      (gen[k] == 0 && ep[k] > 0 && leads[ep[k]] == staged[i])))

inline shift(k) {
    if
    :: gen[k] == gen[i] && pos[k] >= 2 -> pos[k] = pos[k] - 2; word[k] = next[k]; next[k] = 0
    :: else
    fi
}
inline heard(i) { /* i received all; shifts if all members did */
    pos[i] = 2;
    if :: !SOME(BEHIND) -> shift(0); shift(1); shift(2) :: else fi
}
inline say(i, w) {
    if
    :: pos[i] == 0 -> word[i] = w; pos[i] = 1
    :: else -> next[i] = w; pos[i] = 3
    fi
}

proctype Rank(byte i) {
    byte e;
end:
    do
    :: d_step { AT_WORK && (pos[i] == 0 || pos[i] == 2) && !stopped[i] ->
           if                                   /* a vote for the target latches */
           :: pull[i] -> say(i, GO)
           :: !pull[i] && armed[i] -> say(i, GO); latched[i] = true; TELL(printf("@word %d %d 1\n", i, staged[i]); IS(i);)
           :: else -> say(i, STAY); TELL(printf("@word %d %d 0\n", i, staged[i]); IS(i);)
           fi }
    :: d_step { AT_WORK && (pos[i] == 0 || pos[i] == 2) && !stopped[i] && pull[i] && FAILS ->
           ONCE; say(i, FAIL) }
    :: d_step { AT_WORK && pos[i] == 1 && EXCHANGED ->
           TELL(printf("@heard %d %d %d %d %d %d\n", i, pull[i], MEM(i), word[0], word[1], word[2]);)
           if
           :: pull[i] && NOT_PULLED -> emit(i); pull[i] = false; latched[i] = false; TELL(printf("@decline %d\n", i); IS(i);)
           :: pull[i] && !(NOT_PULLED) -> e = ep[i] + 1; TELL(printf("@flip %d %d %d\n", i, staged[i], e);) flip(i, e); e = 0
           :: !pull[i] && ALL_GO && latched[i] -> pull[i] = true; TELL(printf("@go %d\n", i); IS(i);)
           :: else -> emit(i); latched[i] = false; TELL(printf("@stay %d\n", i); IS(i);)
           fi;
           heard(i) }
    :: d_step { up[i] && MEM(i) != 0 && !stopped[i] && SOME(SILENT) -> /* the exchange breaks */
           stopped[i] = true;
           TELL(printf("@stop %d %d\n", i, SAID_PULLED);)
#ifndef NO_PULLED_KEEPS_WORD
           if :: SAID_PULLED :: else -> latched[i] = false fi;
#else
           latched[i] = false;
#endif
           TELL(IS(i))
       }
    :: d_step { up[i] && MEM(i) == 0 && ep[i] == 0 && armed[i] && HEARS(i) && SOME(FLIPPED_MEMBER) ->
           TELL(printf("@join %d %d 1\n", i, staged[i]);)
           enter(i, 1);                         /* a joiner follows */
           pos[i] = (SOME(LAGS) -> 2 : 0) }
    :: d_step { AT_WORK && pos[i] == 3 && !SOME(BEHIND) -> shift(0); shift(1); shift(2) } /* the rank behind is lost */
    :: d_step { up[i] && HEARS(i) && staged[i] != 0 && !armed[i] && SOME(PERMITTED) -> /* a peer's permit */
           armed[i] = true; TELL(printf("@arm %d %d %d\n", i, staged[i], ep[i] + 1);) }
    :: d_step { up[i] && staged[i] != 0 && staged[i] == late && !armed[i] -> /* the operator's permit */
           armed[i] = true; TELL(printf("@arm %d %d %d\n", i, staged[i], ep[i] + 1);) }
#ifdef RUN
    :: d_step { AT_WORK && !stopped[i] && walks[i] > ep[i] && ep[i] > 0 && staged[i] == 0 && !begun[i] && STEPS_ENOUGH ->
           CLAIM(RETIRES, EACH(CAME));                       /* all have flipped before it frees its old places */
           begun[i] = true }
    :: d_step { up[i] && !stopped[i] && begun[i] && walks[i] > ep[i] -> /* has verified the next flip: votes for it */
           begun[i] = false; staged[i] = VERIFIES; armed[i] = true;
           TELL(printf("@walk %d %d %d\n", i, leads[ep[i] + 1], ep[i] + 1); printf("@arm %d %d %d\n", i, leads[ep[i] + 1], ep[i] + 1);) }
#endif
    :: d_step { up[i] && mayMend[i] && !held[i] && EACH(WORD_OUT) -> /* the agents exchanged the repair's votes */
           CLAIM(MENDS, EACH(CAN_MEND));                            /* invariant 3: all live ranks can follow */
           e = mending[i]; TELL(printf("@mended %d %d %d\n", i, 100 + e, stands[e] + 1);) mended(i, e); e = 0 }
    od
}

/* --- the operator: stages, permits, aborts ------------------------------------------------- */

#define AT_REST(k) (!OF_CONCERN(k) || (up[k] && !stopped[k] && staged[k] == 0 && \
                    (!IN(MEMBERS(t - 1), k) || ep[k] == t - 1)))
#define JOINS(k) (IN(MEMBERS(t), k) && !IN(MEMBERS(t - 1), k))
#ifdef RUN
#define FLIPPED(k) (!CONCERNS(k, t) || (ep[k] >= FLIPS && gen[k] == 0))
#define RESTING(k) (!CONCERNS(k, t) || (staged[k] == 0 && ep[k] == ep[0]))
#else
#define FLIPPED(k) (!CONCERNS(k, t) || (ep[k] >= t && gen[k] == 0))
#endif

inline permit(k) {
    d_step { if :: up[k] && staged[k] == a -> TELL(if :: !armed[k] -> printf("@arm %d %d %d\n", k, a, t) :: else fi;) armed[k] = true :: else fi }
}
#ifdef NO_LATCH
#define OPEN(k) false
#else
#define OPEN(k) latched[k]
#endif
inline ask(k) { /* Abort: waits while the vote is latched; a dead rank or a fence ends the wait */
    atomic {
        if
        :: !up[k] || gen[k] > 0 || fences > 0 -> goto gone
        :: up[k] && gen[k] == 0 && CONCERNS(k, t) && ep[k] >= t -> went = true TELL(; printf("@went %d %d\n", k, a))
        :: up[k] && ep[k] < t && staged[k] != a NO(k)
        :: up[k] && ep[k] < t && staged[k] == a && !OPEN(k) ->
               TELL(printf("@withdraw %d %d %d\n", k, a, armed[k]);)
               staged[k] = 0; armed[k] = false; withdrew[k] = a; back = true NO(k)
        fi
    }
}

#ifdef RUN
#ifdef NO_BURNED_RUN /* an abort withdraws only the flip in progress */
#define BURN(k) skip
#else
#define BURN(k) HALT(k)
#endif
/* Abort of a run: withdraws the flips that have not begun, then the one in progress as in ask(). A rank between two
 * flips answers "aborted" for the next one. */
inline askRun(k) {
    d_step { BURN(k); TELL(if :: up[k] && gen[k] == 0 && CONCERNS(k, t) -> printf("@burn %d %d\n", k, last) :: else fi) };
    atomic {
        if
        :: !up[k] || gen[k] > 0 || fences > 0 -> goto gone
        :: up[k] && gen[k] == 0 && staged[k] == 0 -> if :: ep[k] < FLIPS -> withdrew[k] = leads[ep[k] + 1] :: else fi
        :: up[k] && gen[k] == 0 && staged[k] != 0 && !OPEN(k) ->
               TELL(printf("@withdraw %d %d %d\n", k, staged[k], armed[k]);)
               withdrew[k] = staged[k]; staged[k] = 0; armed[k] = false
        fi
    }
}
#endif

proctype Operator() {
    byte a, t = 1, last;
    bool went, back;
#ifdef FOLLOW
    byte called, no;
#endif
    do
    :: atomic { a < ATTEMPTS && t <= FLIPS && fences == 0 && EACH(AT_REST) ->
           a++;                                 /* ids are never reused */
           staged[0] = (CONCERNS(0, t) -> a : 0);
           staged[1] = (CONCERNS(1, t) -> a : 0);
           staged[2] = (CONCERNS(2, t) -> a : 0);
           leads[t] = a; went = false; back = false; last = a
#ifdef RUN
           ; if
           :: t < FLIPS ->
               last = a + 1; leads[t + 1] = last;
               walks[0] = (CONCERNS(0, t) -> FLIPS : 0); walks[1] = (CONCERNS(1, t) -> FLIPS : 0); walks[2] = (CONCERNS(2, t) -> FLIPS : 0)
               TELL(; printf("@run %d\n", last))
           :: else
           fi
#endif
           TELL(; printf("@begin %d %d %d %d\n", a, t, MEMBERS(t - 1), MEMBERS(t))) };
#ifdef FOLLOW
       PERMIT;
#else
       if :: JOINS(2) -> permit(2) :: else fi;  /* joiners first */
       late = a;                                /* permits arrive at any time, also during an abort */
       TELL(if :: permit(2); permit(1); permit(0) :: permit(2); permit(1); permit(0) :: skip fi;) /* mostly immediate */
#endif
       TELL(WHILE(EACH(FLIPPED)))
       if
       :: EACH(FLIPPED)
       :: true ->                               /* the operator timed out */
#ifdef FOLLOW
           ASK;
#elif defined(RUN)
           askRun(0); askRun(1); askRun(2);
#elif defined(NO_MEMBERS_BEFORE_JOINERS)
           ask(2); ask(1); ask(0);
#else
           ask(0); ask(1);
           if :: IN(MEMBERS(t - 1), 2) || !went -> ask(2) :: else fi;
#endif
           CLAIM(ONE_ANSWER, !(went && back))                    /* invariant 3: there is one outcome */
       fi;
#ifdef RUN
       d_step { EACH(RESTING) -> t = ep[0] + 1; a = last } /* the flip in progress has ended; continue from there */
#else
       d_step { if :: EACH(FLIPPED) || went -> t++ :: else fi }
       if :: went -> EACH(FLIPPED) :: !went fi
#endif
    :: a >= ATTEMPTS || t > FLIPS || fences > 0 || !EACH(AT_REST) -> break
    od;
gone:
    skip
}

/* --- a leader: fence, outcome, repair ------------------------------------------------------- */

#define TROUBLE(k) (KNOWN(k) && MEM(k) != 0 && (!up[k] || stopped[k]))
#define ANSWERS(k) (up[k] && IN(view, k))
#define CANDIDATE(k) (KNOWN(k) && ANSWERS(k) && IN(reach, k))
#ifdef NO_WAIT_ALL_STOPPED
#define RESTS(k) true
#else
#define RESTS(k) (!KNOWN(k) || !ANSWERS(k) || MEM(k) == 0 || stopped[k])
#endif
#ifdef NO_LEAVERS_FLIP /* a leaver's flip does not count */
#define SAW(k) (MEM(k) != 0)
#else
#define SAW(k) true
#endif
#define EP(k) (CANDIDATE(k) && SAW(k) -> ep[k] : 0)
#define AT_TO(k) (CANDIDATE(k) && MEM(k) != 0 && ep[k] == to)
#define HOLDS(k) (CANDIDATE(k) && to > 0 && ep[k] < to && \
                  (by > 0 -> mending[k] == by : staged[k] != 0 && staged[k] == leads[to]))
#define THERE(k) (CANDIDATE(k) && MEM(k) != 0)
#define BELOW(k) (CANDIDATE(k) && MEM(k) != 0 && ep[k] + 1 == to && gen[k] == 0)
#define STRANDED(k) (CANDIDATE(k) && MEM(k) != 0 && ep[k] > to)
#define UNFINISHED(k) (staged[k] != 0 || mending[k] != 0)
/* False for a joiner that followed after the leader looked, until it has stopped. */
#define STILL(k) (!IN(alive, k) || !up[k] || MEM(k) == 0 || stopped[k])
#define READY(k) (!IN(alive, k) || (up[k] && ep[k] == to && MEM(k) != 0 && !UNFINISHED(k)))

inline tell(k) { /* Resolve; a rank that has not stopped, or has continued, rejects it */
    d_step {
        if
        :: !IN(alive, k)
        :: IN(alive, k) && (!up[k] || ep[k] > to || mending[k] >= f || (UNFINISHED(k) && MEM(k) != 0 && !stopped[k])) -> again = true
        :: else ->
            if
            :: ep[k] < to && by == 0 && staged[k] != 0 ->
                   TELL(printf("@forward %d %d %d\n", k, staged[k], to);)
                   enter(k, to); stopped[k] = true                                         /* FORWARD */
            :: ep[k] < to && by > 0 && mending[k] == by ->
                   TELL(printf("@forward %d %d %d\n", k, 100 + by, to);)
                   mended(k, by); stopped[k] = true
            :: ep[k] == to ->
                   TELL(printf("@fence %d\n", k);)
                   staged[k] = 0; armed[k] = false; latched[k] = false                     /* STAY */
            :: else -> again = true
            fi;
            HALT(k); pull[k] = false; mending[k] = 0; mayMend[k] = false; held[k] = false
        fi
    }
}
#ifdef NO_HOLD
#define LOOSE(k) false
#else
#define LOOSE(k) (CANDIDATE(k) && mending[k] != 0 && !held[k]) /* it may flip a repair at any moment */
#endif
inline hold(k) {
    if :: ANSWERS(k) && mending[k] != 0 -> held[k] = true TELL(; printf("@hold %d %d\n", k, 100 + mending[k])) :: else fi
}
inline stage(k) {
    if :: IN(alive, k) && up[k] -> mending[k] = f TELL(; printf("@mend %d %d %d %d\n", k, 100 + f, to + 1, alive)) :: else fi
}
inline drop(k) { /* Abort of a repair that was not permitted */
    if :: mending[k] == f && !mayMend[k] -> mending[k] = 0 TELL(; if :: up[k] -> printf("@drop %d %d\n", k, 100 + f) :: else fi) :: else fi
}
inline permitRepair(k) {
    d_step {
        if
        :: IN(alive, k) && up[k] && mending[k] == f -> TELL(printf("@arm %d %d %d\n", k, 100 + f, stands[f] + 1);) mayMend[k] = true; words[f] = words[f] | 1 << k
        :: else
        fi
    }
}

#define ONE(m) (((m) & ((m) - 1)) == 0)

proctype Leader() {
    byte v, f, view, reach, to, by, alive, old;
    bool again;
#ifdef FOLLOW
    byte done;
#endif
end:
    do
    :: d_step { fences < MAX_FENCES && !over && SOME(TROUBLE) ->
           proposed = 0 }                       /* withdraws a proposed repair without a permit */
       atomic { /* the ranks that the leader reaches */
           if
           :: SEES -> view = 7; reach = 7
#ifdef FOLLOW
           MISSES
#else
           :: cut < N -> view = 7; reach = 7 & ~(1 << cut)
           :: cut < N -> view = 7 & ~(1 << cut); reach = view
#endif
#if SCENARIO == 5
           :: cut < N -> view = 1 << cut; reach = view
#endif
           fi;
#ifndef NO_HOLD
           hold(0); hold(1); hold(2)
#else
           skip
#endif
       }
       if
       :: atomic { !SOME(TROUBLE) || fences == MAX_FENCES || (SEES && reach != 7) || SOME(LOOSE) -> again = true }
       :: atomic { SOME(TROUBLE) && fences < MAX_FENCES && EACH(RESTS) && SOME(THERE) && !SOME(LOOSE) ->
           again = false; v = version;          /* all answering ranks are stopped: decides */
           to = EP(0);
           if :: EP(1) > to -> to = EP(1) :: else fi;
           if :: EP(2) > to -> to = EP(2) :: else fi;
#ifdef NO_FORWARD
           if :: SOME(BELOW) -> to-- :: else fi;
#endif
           by = (AT_TO(0) -> gen[0] : (AT_TO(1) -> gen[1] : (AT_TO(2) -> gen[2] : 0)));
           old = (AT_TO(0) -> MEM(0) : (AT_TO(1) -> MEM(1) : (AT_TO(2) -> MEM(2) : MEMBERS(to))));
           alive = old & ((AT_TO(0) || HOLDS(0) -> 1 : 0) | (AT_TO(1) || HOLDS(1) -> 2 : 0) |
                         (AT_TO(2) || HOLDS(2) -> 4 : 0))
           TELL(; LOOK) }
       fi;
       atomic { /* the fence: one compare-and-swap */
           if
           :: again
#ifdef NO_CAS
           :: !again && fences < MAX_FENCES ->
#else
           :: !again && version == v && fences < MAX_FENCES ->
#endif
               CLAIM(FEWER, fences == 0 || (alive & ~survivors) == 0); /* survivors only become fewer */
               CLAIM(KEPT, !SOME(STRANDED));                     /* invariant 3: no flip is undone */
               if
               :: ONE(alive) && old == 7 -> over = true; again = true  /* one of three does not go on */
               :: else ->
                   version++; v = version; fences++; f = fences;
                   survivors = alive; world[f] = alive; stands[f] = to
               fi
           :: else -> again = true
           fi
       }
       if
       :: again
       :: !again ->
#ifdef FOLLOW
           TELL_ALL;
#else
           tell(0); tell(1); tell(2);
#endif
           again || version != v || EACH(STILL); /* a stepping rank rejects the repair: retry */
           d_step { /* looks again, then proposes the repair */
               if
               :: !again && version == v && EACH(READY) -> proposed = f; stage(0); stage(1); stage(2)
               :: else -> again = true
               fi }
           if
           :: again
           :: !again ->
               d_step { again = (version != v) }                      /* is its fence still the last one? */
#ifdef FOLLOW
               if :: again = true :: skip fi;                         /* staging the repair failed */
#endif
               d_step { /* the permit, by compare-and-swap of both records */
                   if
#ifdef NO_PERMIT_BY_CAS
                   :: !again && proposed == f -> proposed = 0
#else
                   :: !again && proposed == f && version == v -> proposed = 0; version++
#endif
                   :: else -> again = true; drop(0); drop(1); drop(2)
                   fi }
               if
               :: again
#ifdef FOLLOW
               :: !again -> PERMIT_REPAIR
#else
               :: !again -> permitRepair(0); permitRepair(1); permitRepair(2)
#endif
               fi
           fi
       fi;
       d_step { v = 0; f = 0; view = 0; reach = 0; to = 0; by = 0; alive = 0; old = 0; again = false }
    od
}

/* --- the failure, and the end --------------------------------------------------------------- */

proctype Failure() { /* a random run often has it during a flip */
    TELL(if :: WHILE(pull[0] || pull[1] || pull[2]) :: SCENARIO == 4 -> ep[0] > ep[1] && ep[0] > ep[2] fi;)
#if FAULT == 1
    if :: up[0] = false :: up[1] = false :: up[2] = false fi
#else
    if :: cut = 0 :: cut = 1 fi;
    if :: cut = N :: true fi
#endif
}

#define WELL(k) (!KNOWN(k) || MEM(k) == 0 || (up[k] && !stopped[k]))
proctype Watch() { /* runs when no other process can take a step */
    timeout;
    /* Other allowed ends: the fences are used up; or the leaders see only the lost side of a cut. */
    CLAIM(NEVER_STUCK, EACH(WELL) || (LEADERS == 2 && fences == MAX_FENCES) || (SCENARIO == 5 && cut < N));
    CLAIM(GOES_ON, !over)                                        /* one failure never ends a world */
}

init {
    atomic {
        TELL(printf("@first %d\n", MEMBERS(0));)
#ifdef FOLLOW
        BEGIN;
#endif
        run Rank(0); run Rank(1);
#if SCENARIO != 5 && SCENARIO != 7
        run Rank(2);
#endif
#ifdef FOLLOW
        REST
#else
#if ATTEMPTS > 0
        run Operator();
#endif
#if LEADERS > 0
        run Leader();
#endif
#if LEADERS > 1
        run Leader();
#endif
#if FAULT > 0
        run Failure();
#endif
        run Watch()
#endif
    }
}
