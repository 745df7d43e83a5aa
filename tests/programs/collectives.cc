/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* usage: collectives DIRECTORY RANK RANKS DEVICE
 * A process of gloo, with its ibverbs transport. It checks each word of what the algorithms leave. They are
 * those that this transport has buffers for: the newer functions of gloo ask for unbound ones. */
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace
{

using Context = std::shared_ptr<gloo::Context>;
using Words = std::vector<int64_t>;

const int64_t rounds = 5;
int64_t checked;

int64_t word(int rank, int64_t at, int64_t round)
{
    return (rank + 1) * 1000003 + at * 17 + round;
}

void fill(Words &words, int rank, int64_t round)
{
    for (size_t i = 0; i < words.size(); i++)
        words[i] = word(rank, static_cast<int64_t>(i), round);
}

void expect(const char *what, int64_t at, int64_t got, int64_t wanted)
{
    checked++;
    if (got == wanted)
        return;
    fprintf(stderr, "%s: word %lld is %lld, not %lld\n", what, static_cast<long long>(at),
            static_cast<long long>(got), static_cast<long long>(wanted));
    exit(1);
}

/* A buffer of gloo may only go when its sends have completed, for which the algorithms do not wait. They have
 * when a later one to the same process has. */
class Settled
{
  public:
    explicit Settled(const Context &context)
    {
        const int slot = static_cast<int>(context->nextSlot());

        for (int peer = 0; peer < context->size; peer++) {
            if (peer == context->rank)
                continue;
            sends.push_back(context->getPair(peer)->createSendBuffer(slot, &out, sizeof(out)));
            receives.push_back(context->getPair(peer)->createRecvBuffer(slot, &in, sizeof(in)));
        }
    }

    ~Settled()
    {
        for (auto &buffer : sends)
            buffer->send();
        for (auto &buffer : sends)
            buffer->waitSend();
        for (auto &buffer : receives)
            buffer->waitRecv();
    }

  private:
    std::vector<std::unique_ptr<gloo::transport::Buffer>> sends, receives;
    int out = 0, in = 0;
};

template <typename Algorithm> void allreduce(const char *what, const Context &context, int count)
{
    Words words(static_cast<size_t>(count));
    Algorithm algorithm(context, std::vector<int64_t *>{words.data()}, count);
    Settled settled(context);

    for (int64_t round = 0; round < rounds; round++) {
        fill(words, context->rank, round);
        algorithm.run();
        for (int64_t i = 0; i < count; i++) {
            int64_t sum = 0;

            for (int rank = 0; rank < context->size; rank++)
                sum += word(rank, i, round);
            expect(what, i, words[static_cast<size_t>(i)], sum);
        }
    }
}

void barrier(const Context &context)
{
    gloo::BarrierAllToAll algorithm(context);
    Settled settled(context);

    algorithm.run();
}

/* The neighbour writes to the result, as soon as it is in the next round. */
void allgather(const Context &context, int count)
{
    Words words(static_cast<size_t>(count)), all(static_cast<size_t>(count * context->size));
    gloo::AllgatherRing<int64_t> algorithm(context, {words.data()}, all.data(), count);
    Settled settled(context);

    for (int64_t round = 0; round < rounds; round++) {
        fill(words, context->rank, round);
        algorithm.run();
        for (int64_t i = 0; i < count * context->size; i++)
            expect("allgather", i, all[static_cast<size_t>(i)],
                   word(static_cast<int>(i / count), i % count, round));
        barrier(context);
    }
}

void broadcast(const Context &context, int count)
{
    for (int root = 0; root < context->size; root++) {
        Words words(static_cast<size_t>(count));
        gloo::BroadcastOneToAll<int64_t> algorithm(context, {words.data()}, count, root);
        Settled settled(context);

        fill(words, context->rank, root);
        algorithm.run();
        for (int64_t i = 0; i < count; i++)
            expect("broadcast", i, words[static_cast<size_t>(i)], word(root, i, root));
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    gloo::transport::ibverbs::attr attributes;
    attributes.name = argv[4];
    attributes.port = 1;
    attributes.index = 0;
    auto context = std::make_shared<gloo::rendezvous::Context>(atoi(argv[2]), atoi(argv[3]));
    auto device = gloo::transport::ibverbs::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(argv[1]);
    context->connectFullMesh(store, device);
    for (int count : {1, 1000, 300000}) {
        allreduce<gloo::AllreduceRing<int64_t>>("ring", context, count);
        allreduce<gloo::AllreduceRingChunked<int64_t>>("chunked ring", context, count);
        allreduce<gloo::AllreduceHalvingDoubling<int64_t>>("halving and doubling", context, count);
        allgather(context, count);
        broadcast(context, count);
        barrier(context);
    }
    /* The context stays: a pair may not go while gloo's thread puts a receive back, and nothing tells when it
     * has. */
    printf("rank %d of %d: %lld words\n", context->rank, context->size, static_cast<long long>(checked));
    fflush(stdout);
    _exit(0);
}
