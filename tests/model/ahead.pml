/* KV that is copied ahead of a flip (docs/architecture.md, 4.2): a request at its home, in blocks that are used again and again, and the rank
 * that will be its home, which copies a block that is told to be full while steps go on. README.md, "Copies ahead", has the rules that
 * -DNO_... takes out.
 */
#define BLOCKS 2  /* of the home */
#define GENERATIONS 3
#define STEPS 5
#define PULLS 2

byte content[BLOCKS];  /* of the home's memory: the number of the write that it is of, no two alike */
byte writes, generation, block, pick;
bool running, filled;

/* The other rank: what it was told in the last exchange; what comes, into memory that is reserved for it. */
bool told;
byte told_generation, told_block;
bool coming, writing, here, gone;  /* gone: nobody wants it, and its memory is free when it came */
byte coming_generation;
byte mine, used;  /* the write that the reserved memory holds, and what the request has after the flip */

/* Pulls of agents: each lands at any time, with what the source holds then. */
bool under_way[PULLS];
byte source[PULLS];

#define WRITE(b) writes++; content[b] = writes
#define ALL_LANDED (!under_way[0] && !under_way[1])
#ifdef NO_GENERATION
#define OF_THE_FLIP true
#else
#define OF_THE_FLIP coming_generation == generation
#endif

active proctype Agents() {
end:
    do
    :: atomic { under_way[0] -> mine = content[source[0]]; under_way[0] = false }
    :: atomic { under_way[1] -> mine = content[source[1]]; under_way[1] = false }
    od
}

/* One thing that happens at the home in a step. A request that comes back by its name has another generation. */
inline Something() {
    if
    :: skip
    :: running && !filled -> WRITE(block); filled = true
#ifdef NO_FULL_IS_FINAL
    :: running && filled -> WRITE(block)
#endif
    :: running -> running = false; filled = false
    :: !running && generation < GENERATIONS ->
        running = true; generation++;
        if :: filled = false :: filled = true fi;  /* a prompt may fill a block at once */
        if :: block = 0 :: block = 1 fi;
        WRITE(block)
    :: !running || block != 0 -> WRITE(0)  /* another request's */
    :: !running || block != 1 -> WRITE(1)
    fi
}

/* What was being written is here. */
inline TakeUp() {
    if
    :: writing && ALL_LANDED ->
        writing = false;
        here = !gone;
        coming = !gone;
        gone = false
    :: else
    fi
}

inline Discard() {
    if
#ifndef NO_MEMORY_UNTIL_IT_CAME
    :: writing -> gone = true; here = false
#endif
    :: else -> coming = false; writing = false; here = false
    fi
}

inline Begin() {
    coming = true; writing = true; here = false;
    coming_generation = told_generation;
    pick = (under_way[0] -> 1 : 0);
    source[pick] = told_block;
    under_way[pick] = true
}

active proctype World() {
    byte steps;
    do
    :: steps < STEPS ->
        atomic {
            steps++;
            Something();
            Something();
            /* the exchange that opens the next step */
            told = running && filled; told_generation = generation; told_block = block
        };
        atomic {
            TakeUp();
            if
            :: coming && !gone && !(told && told_generation == coming_generation) -> Discard()
            :: else
            fi;
            if
            :: !coming && told && !(under_way[0] && under_way[1]) -> Begin()
            :: else
            fi
        }
    :: break
    od;
    /* The flip's step: what is told in it is the manifest, and nobody computes meanwhile. */
    atomic { Something(); Something() };
#ifndef NO_WAIT
    (!writing || ALL_LANDED);
    TakeUp();
#else
    if :: writing && !gone -> here = true :: else fi;
#endif
    if
    :: coming && here && !gone && OF_THE_FLIP && running && filled -> used = mine
    :: else -> used = content[block]  /* it comes in the flip */
    fi;
    assert(!running || used == content[block])  /* SAME */
}
