/* Steps that pause during an attempt (strategy Fast; docs/architecture.md, 4): three ranks, clocks that are never
 * compared, and an operator that prepares, then permits or aborts, and may die at any point. README.md, "Pauses", has
 * the rules that -DNO_... removes. An exchange is one step of World and includes all members (gate.pml has broken
 * exchanges). Calls of the operator reach each rank at any time between two exchanges.
 */
#define N 3
#define REQUESTS 2
#define EACH(P) (P(0) && P(1) && P(2))
#define SOME(P) (P(0) || P(1) || P(2))

bool prepared[N];      /* the attempt is in progress at this rank: from Prepare to its end */
bool verified[N];      /* all pieces of the attempt are verified */
bool armed[N];         /* permitted: it votes for the target */
bool over[N];          /* the longest pause of one attempt has passed */
bool must_serve[N];    /* KV does not fit: requests must end before the flip */
bool flipped, aborted;
byte live = REQUESTS;  /* running requests; each step ends one */
byte room;             /* number of requests for which the target has room */
bool declined, paused; /* declined: once; paused: only for NO_END */
bool computes[N];      /* in this step of World */

/* In the exchange the rank requests that no step is computed. */
#define WANTS_NONE(k) (prepared[k] && !over[k] && !must_serve[k])
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

/* Bytes arrive, and time passes. */
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
    :: true -> /* gate.pml has aborts after a permit */
        if :: prepared[0] = false OR_DIES fi;
        if :: prepared[1] = false OR_DIES fi;
        if :: prepared[2] = false OR_DIES fi;
        aborted = true
    fi;
dead:
    skip
}

/* An exchange and its result. Waits while an exchange would change nothing. */
proctype World() {
end:
    do
    :: atomic { FLIP || DECLINE || SOME(COMPUTED) ->
           computes[0] = COMPUTED(0); computes[1] = COMPUTED(1); computes[2] = COMPUTED(2);
           paused = PAUSE;
           if
           :: FLIP -> /* the flip's step computes nothing */
               flipped = true; paused = false;
               computes[0] = false; computes[1] = false; computes[2] = false;
               prepared[0] = false; prepared[1] = false; prepared[2] = false
           :: DECLINE -> /* all decide on the same gathered data, so all decline */
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

proctype Watch() { /* runs when no other process can take a step */
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
