/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program of MPI whose buffers come and go while the library below has them registered. Each rank checks
 * what it gets, byte by byte; the last line says how much that was. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 8 << 20, WORDS = 4096, ROUNDS = 50 };

static int rank, ranks;
static unsigned long long checked;

static void fail(const char *what, size_t at, unsigned got, unsigned wanted)
{
    fprintf(stderr, "rank %d: %s: %zu is %u, not %u\n", rank, what, at, got, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char pattern(int of, size_t at, unsigned round)
{
    return (unsigned char)((unsigned)of * 31 + round * 17 + at * 7 + (at >> 12));
}

/* To the next rank and from the one before; the buffers are of malloc, grow, go, and are zero when asked for.
 */
static void ring(void)
{
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    unsigned char *out = NULL, *in;
    unsigned round = 0;

    for (size_t size = 1; size <= LARGEST; size *= 2, round++) {
        out = realloc(out, size);
        in = calloc(size, 1);
        if (!out || !in)
            fail("no memory for bytes", size, 0, 1);
        for (size_t i = 0; i < size; i++) {
            if (in[i])
                fail("memory of calloc()", i, in[i], 0);
            out[i] = pattern(rank, i, round);
        }
        MPI_Sendrecv(out, (int)size, MPI_BYTE, next, 1, in, (int)size, MPI_BYTE, last, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (size_t i = 0; i < size; i++) {
            if (in[i] != pattern(last, i, round))
                fail("received byte", i, in[i], pattern(last, i, round));
        }
        checked += size;
        free(in);
    }
    free(out);
}

static void one_sided(void)
{
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    unsigned long long one = 1, *words = calloc(WORDS, sizeof(*words)), *got = calloc(WORDS, sizeof(*got));
    MPI_Win window;

    if (!words || !got)
        fail("no memory for words", WORDS, 0, 1);
    MPI_Win_create(words, WORDS * sizeof(*words), sizeof(*words), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    for (unsigned i = 0; i < ROUNDS; i++) {
        for (int to = 0; to < ranks; to++)
            MPI_Accumulate(&one, 1, MPI_UNSIGNED_LONG_LONG, to, i, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM,
                           window);
    }
    MPI_Win_fence(0, window);
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (words[i] != (unsigned long long)ranks)
            fail("accumulated word", i, (unsigned)words[i], (unsigned)ranks);
    }
    MPI_Win_fence(0, window);
    for (unsigned i = 0; i < WORDS; i++)
        got[i] = (unsigned)rank * WORDS + i;
    MPI_Put(got, WORDS, MPI_UNSIGNED_LONG_LONG, next, 0, WORDS, MPI_UNSIGNED_LONG_LONG, window);
    MPI_Win_fence(0, window);
    for (unsigned i = 0; i < WORDS; i++) {
        if (words[i] != (unsigned)last * WORDS + i)
            fail("word that was put", i, (unsigned)words[i], (unsigned)last * WORDS + i);
    }
    memset(got, 0, WORDS * sizeof(*got));
    MPI_Win_fence(0, window);
    MPI_Get(got, WORDS, MPI_UNSIGNED_LONG_LONG, next, 0, WORDS, MPI_UNSIGNED_LONG_LONG, window);
    MPI_Win_fence(0, window);
    for (unsigned i = 0; i < WORDS; i++) {
        if (got[i] != (unsigned)rank * WORDS + i)
            fail("word that was got", i, (unsigned)got[i], (unsigned)rank * WORDS + i);
    }
    checked += 2 * WORDS * sizeof(*words);
    MPI_Win_free(&window);
    free(words);
    free(got);
}

int main(int argc, char **argv)
{
    int sum = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < 3; i++) {
        ring();
        one_sided();
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (sum != ranks * (ranks - 1) / 2)
            fail("sum of ranks", (size_t)i, (unsigned)sum, (unsigned)(ranks * (ranks - 1) / 2));
    }
    if (rank == 0)
        printf("%d ranks, %llu bytes each\n", ranks, checked);
    MPI_Finalize();
    return 0;
}
