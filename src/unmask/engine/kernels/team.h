/* Threads that wait for work and do it together.

   They look out for work for a moment before they sleep: waking one takes longer than a short text. One call at a time
   has them; a call that comes while they are busy does its work alone. */
#ifndef UNMASK_TEAM_H
#define UNMASK_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MOST_THREADS 256
#define LOOKS_BEFORE_SLEEP 20000
#define LOOKS_BEFORE_YIELD 4000

typedef struct {
    atomic_int arrived, round;
} barrier;

INLINE void breathe(int64_t looks) {
    if (looks > LOOKS_BEFORE_YIELD) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Until all `size` have come. What they wrote before can be read afterwards. */
static void meet(barrier *at, int size) {
    if (size == 1) return;
    int round = atomic_load_explicit(&at->round, memory_order_acquire);
    if (atomic_fetch_add(&at->arrived, 1) == size - 1) {
        atomic_store(&at->arrived, 0);
        atomic_fetch_add(&at->round, 1);
        return;
    }
    for (int64_t looks = 0; atomic_load_explicit(&at->round, memory_order_acquire) == round; looks++) breathe(looks);
}

/* Memory of one thread, kept from call to call. */
typedef struct {
    char *bytes;
    size_t size;
} room;

#define LARGE_PAGE ((size_t)1 << 21)

/* At least so much, or NULL. What was in it before is lost. In large pages where the system has them: looking up many
   small ones takes time, on a virtual machine twice. */
static char *room_for(room *of, size_t size) {
    if (of->size < size) {
        free(of->bytes);
        of->bytes = NULL;
        of->size = 0;
        size_t unit = size < LARGE_PAGE ? 64 : LARGE_PAGE;
        size = (size + unit - 1) / unit * unit;
        if (posix_memalign((void **)&of->bytes, unit, size)) return of->bytes = NULL;
#ifdef MADV_HUGEPAGE
        if (unit == LARGE_PAGE) madvise(of->bytes, size, MADV_HUGEPAGE); /* a wish */
#endif
        of->size = size;
    }
    return of->bytes;
}

typedef void (*work)(void *what, int rank, int size, room *mine);

static struct {
    pthread_mutex_t busy, gate;
    pthread_cond_t wake;
    atomic_int call, unfinished;
    int threads, size; /* how many wait beside the caller, and how many take part in this call */
    work todo;
    void *what;
    room rooms[MOST_THREADS];
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .gate = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

typedef struct {
    int rank, call; /* which one, and the last call that was not for it */
} recruit;

static void *wait_for_work(void *given) {
    recruit me = *(recruit *)given;
    free(given);
    for (;;) {
        for (int64_t looks = 0; atomic_load(&pool.call) == me.call && looks < LOOKS_BEFORE_SLEEP; looks++) breathe(0);
        if (atomic_load(&pool.call) == me.call) {
            pthread_mutex_lock(&pool.gate);
            while (atomic_load(&pool.call) == me.call) pthread_cond_wait(&pool.wake, &pool.gate);
            pthread_mutex_unlock(&pool.gate);
        }
        me.call = atomic_load(&pool.call);
        if (me.rank < pool.size) pool.todo(pool.what, me.rank, pool.size, &pool.rooms[me.rank]);
        atomic_fetch_sub(&pool.unfinished, 1);
    }
    return NULL;
}

/* In a process that was forked off only the caller lives on. */
static void forget_threads(void) {
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.gate, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.threads = 0;
}

static void recruit_threads(int wanted) {
    static atomic_int asked;
    if (!atomic_exchange(&asked, 1)) pthread_atfork(NULL, NULL, forget_threads);
    while (pool.threads < wanted) {
        pthread_t thread;
        recruit *one = malloc(sizeof *one);
        if (!one) return;
        *one = (recruit){pool.threads + 1, atomic_load(&pool.call)};
        if (pthread_create(&thread, NULL, wait_for_work, one)) {
            free(one);
            return; /* fewer then */
        }
        pthread_detach(thread);
        pool.threads++;
    }
}

/* `todo` by up to `size` threads at once, the caller as rank 0. */
static void together(work todo, void *what, int size) {
    if (size > MOST_THREADS) size = MOST_THREADS;
    if (pthread_mutex_trylock(&pool.busy)) {
        room own = {0};
        todo(what, 0, 1, &own);
        free(own.bytes);
        return;
    }
    recruit_threads(size - 1);
    if (size > pool.threads + 1) size = pool.threads + 1;
    if (size == 1) {
        todo(what, 0, 1, &pool.rooms[0]);
    } else {
        pool.todo = todo;
        pool.what = what;
        pool.size = size;
        atomic_store(&pool.unfinished, pool.threads);
        pthread_mutex_lock(&pool.gate);
        atomic_fetch_add(&pool.call, 1);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.gate);
        todo(what, 0, size, &pool.rooms[0]);
        for (int64_t looks = 0; atomic_load(&pool.unfinished); looks++) breathe(looks);
    }
    pthread_mutex_unlock(&pool.busy);
}

#endif
