/* Steps that pause while an attempt is under way (strategy Fast; docs/architecture.md, 4): three ranks, an operator that prepares, then permits or
 * takes back, and may die at any point, clocks that nobody compares. README.md, "Pauses", has the rules that -DNO_... takes out.
 * An exchange is of all members or of none (gate.pml has what happens when it breaks): one turn of World. Between two of them each rank
 * hears from agent and operator what it hears, or not yet.
 */
#define N 3
#define REQUESTS 2
#define EACH(P) (P(0) && P(1) && P(2))
#define SOME(P) (P(0) || P(1) || P(2))

bool prepared[N];      /* the attempt is this rank's, from Prepare to its end */
bool verified[N];      /* all bytes of it are here */
bool armed[N];         /* permitted: its word is for the target */
bool over[N];          /* steps have paused for as long as one attempt may have that */
bool must_serve[N];    /* KV does not fit: requests must end before the flip */
bool flipped, aborted;
byte live = REQUESTS;  /* requests that run; a step ends one */
byte room;             /* the target has room for so many */
bool declined, paused; /* declined once; paused: of NO_END */
bool computes[N];      /* in this turn */

#define WANTS_NONE(k) (prepared[k] && !over[k] && !must_serve[k]) /* what a rank says in the exchange: no step */
#define WANTED (WANTS_NONE(0) || WANTS_NONE(1) || WANTS_NONE(2))
#define ARMED(k) armed[k]
#define VERIFIED(k) verified[k]
#define COMPUTES(k) computes[k]
#define RESTS(k) !computes[k]

#ifdef NO_END
#define PAUSE (paused || WANTED)
#else
#define PAUSE WANTED
#endif
#ifdef NO_ALIKE
#define COMPUTED(k) (live > 0 && !WANTS_NONE(k))
#else
#define COMPUTED(k) (live > 0 && !PAUSE)
#endif
#define FLIP (EACH(ARMED) && !flipped && live <= room)
#define DECLINE (EACH(ARMED) && !flipped && live > room && !declined)

/* Bytes come, and time passes. */
proctype Rank(byte k) {
end:
    do
    :: atomic { prepared[k] && !verified[k] -> verified[k] = true }
#ifndef NO_BOUND
    :: atomic { prepared[k] && !over[k] -> over[k] = true }
#endif
    od
}

#ifdef NO_DEATH
#define OR_DIES
#else
#define OR_DIES :: true -> goto dead
#endif

proctype Operator() {
    if :: prepared[2] = true OR_DIES fi;
    if :: prepared[0] = true OR_DIES fi;
    if :: prepared[1] = true OR_DIES fi;
    if
    :: EACH(VERIFIED) ->
        if :: armed[1] = true OR_DIES fi;
        if :: armed[2] = true OR_DIES fi;
        if :: armed[0] = true OR_DIES fi
    :: true -> /* an abort that comes after a permit is gate.pml's */
        if :: prepared[0] = false OR_DIES fi;
        if :: prepared[1] = false OR_DIES fi;
        if :: prepared[2] = false OR_DIES fi;
        aborted = true
    fi;
dead:
    skip
}

/* An exchange, and what follows; it waits while nothing would come of one. */
proctype World() {
end:
    do
    :: atomic { FLIP || DECLINE || SOME(COMPUTED) ->
           computes[0] = COMPUTED(0); computes[1] = COMPUTED(1); computes[2] = COMPUTED(2);
           paused = PAUSE;
           if
           :: FLIP -> /* in its own step nothing is computed */
               flipped = true; paused = false;
               computes[0] = false; computes[1] = false; computes[2] = false;
               prepared[0] = false; prepared[1] = false; prepared[2] = false
           :: DECLINE -> /* a pure function of what all gathered: all decline */
               declined = true
#ifndef NO_MORE
               ; must_serve[0] = true; must_serve[1] = true; must_serve[2] = true
#endif
           :: else
           fi;
           assert(EACH(COMPUTES) || EACH(RESTS)); /* ALIKE */
           if :: computes[0] -> live-- :: else fi;
           computes[0] = false; computes[1] = false; computes[2] = false }
    od
}

proctype Watch() { /* runs when nobody else can take a step */
    timeout;
    assert(live == 0);                   /* SERVES */
    assert(!EACH(ARMED) || flipped)      /* FLIPS */
}

init {
    atomic {
        if :: room = 0 :: room = 1 :: room = 2 fi;
        run Rank(0); run Rank(1); run Rank(2);
        run Operator();
        run World();
        run Watch()
    }
}
