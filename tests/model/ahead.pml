/* KV that is copied ahead of a flip (docs/architecture.md, 4.2). A request at its home uses the same blocks again and
 * again. The rank that will be its home copies a block that is reported full, while steps continue. README.md, "Copies
 * ahead", has the rules that -DNO_... removes.
 */
#define BLOCKS 2  /* of the home */
#define GENERATIONS 3
#define STEPS 5
#define PULLS 2

byte content[BLOCKS];  /* of the home's memory: the number of its last write, which is unique */
byte writes, generation, block, pick;
bool running, filled;

/* The other rank: the report of the last exchange; the copy into memory that is reserved for the request. */
bool told;
byte told_generation, told_block;
bool coming, writing, here, gone;  /* gone: no longer needed; its memory is freed when the copy has ended */
byte coming_generation;
byte mine, used;  /* the write in the reserved memory, and the write that the request has after the flip */

/* Pulls of agents: each ends at any time, with the source's content at that time. */
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

/* One event at the home in a step. A request that is submitted again under its name has another generation. */
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
        if :: filled = false :: filled = true fi;  /* a prompt may fill a block immediately */
        if :: block = 0 :: block = 1 fi;
        WRITE(block)
    :: !running || block != 0 -> WRITE(0)  /* by another request */
    :: !running || block != 1 -> WRITE(1)
    fi
}

/* Takes up a copy that has ended. */
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
    /* The flip's step: its report is the manifest, and no rank computes meanwhile. */
    atomic { Something(); Something() };
#ifndef NO_WAIT
    (!writing || ALL_LANDED);
    TakeUp();
#else
    if :: writing && !gone -> here = true :: else fi;
#endif
    if
    :: coming && here && !gone && OF_THE_FLIP && running && filled -> used = mine
    :: else -> used = content[block]  /* fetched in the flip */
    fi;
    assert(!running || used == content[block])  /* SAME */
}
