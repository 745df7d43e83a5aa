/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Mistakes of which a completion says a status only, or nobody anything: each a connection of two ends of which one
 * thing is wrong, with public verbs only.
 *
 * usage: mistakes NAME [same|users]     (without one: lists them; same: both ends in this process; users: the ends are
 *                                      of two users, 61001 and 61002)
 *
 * The near end, in this process, makes the request. The far end is a child. When the near end has its completion it
 * says "done NEAR FAR" (process numbers), and both go on when they are told to. */
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

enum key { KEY_RIGHT, KEY_OTHER, KEY_SWAPPED, KEY_UNKNOWN };
enum act { NOTHING, DEREGISTER, DESTROY, RESET, TO_ERROR, LEAVE, STOP, REBIND, UNBIND, NEVER_BIND };

#define LENGTH 4096u
#define ALL                                                                                                  \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define NOT(bit) (ALL & ~(bit))
#define WR_ID    4711

struct mistake {
    const char *name;
    enum ibv_wr_opcode opcode;
    uint32_t length;
    int32_t offset;       /* of the remote address */
    int32_t local_offset; /* of the SGE */
    enum key rkey, lkey;
    bool swap_address, truncate_address, ud, other_pd, far_other_pd;
    int take_away_far, take_away_near, take_away_qp; /* access flags */
    uint32_t receive;                                /* bytes that the far end posts; 0: none */
    bool receive_read_only;
    enum ibv_mtu far_mtu;
    uint32_t psn, qpn; /* added to what is right */
    uint8_t max_rd_atomic, granted;
    unsigned count; /* of requests, in one call */
    enum act act;   /* of the far end (STOP: to it), once connected */
};

static const struct mistake mistakes[] = {
    /* animeshtrivedi/rdma-example#3 and #4, zrlio/disni#3, ydb-platform/nbs#5707: the same number on many adapters. */
    {"rkey-is-lkey", IBV_WR_RDMA_WRITE, 64, .rkey = KEY_OTHER},
    {"rkey-swapped", IBV_WR_RDMA_READ, 64, .rkey = KEY_SWAPPED},
    {"rkey-unknown", IBV_WR_RDMA_WRITE, 64, .rkey = KEY_UNKNOWN},
    {"range-too-long", IBV_WR_RDMA_WRITE, 200, .offset = LENGTH - 100},
    {"range-too-early", IBV_WR_RDMA_WRITE, 64, .offset = -16},
    {"address-swapped", IBV_WR_RDMA_WRITE, 64, .swap_address = true},
    /* w180112/RDMA-example#3: an address of 64 bits went through htonl() and ntohl(). */
    {"address-truncated", IBV_WR_RDMA_WRITE, 64, .truncate_address = true},
    {"no-remote-write", IBV_WR_RDMA_WRITE, 64, .take_away_far = IBV_ACCESS_REMOTE_WRITE},
    {"no-remote-read", IBV_WR_RDMA_READ, 64, .take_away_far = IBV_ACCESS_REMOTE_READ},
    /* jcxue/RDMA-Tutorial#13: NAKs, though qp_access_flags permit atomics: the MR does not, most likely. */
    {"no-remote-atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, .take_away_far = IBV_ACCESS_REMOTE_ATOMIC},
    {"qp-without-remote-write", IBV_WR_RDMA_WRITE, 64, .take_away_qp = IBV_ACCESS_REMOTE_WRITE},
    /* spdk/spdk#1387: the initiator ends, and the target still moves its data. */
    {"far-deregistered", IBV_WR_RDMA_WRITE, 64, .act = DEREGISTER},
    {"far-other-pd", IBV_WR_RDMA_WRITE, 64, .far_other_pd = true},
    {"window-rebound", IBV_WR_RDMA_WRITE, 64, .act = REBIND},
    {"window-unbound", IBV_WR_RDMA_WRITE, 64, .act = UNBIND},
    {"window-never-bound", IBV_WR_RDMA_WRITE, 64, .act = NEVER_BIND},
    /* spdk/spdk#2261: the responder takes fewer at once than the connection manager was told. */
    {"too-many-reads", IBV_WR_RDMA_READ, 64, .max_rd_atomic = 8, .granted = 1, .count = 4},
    {"no-reads-granted", IBV_WR_RDMA_READ, 64, .max_rd_atomic = 255},
    {"receive-too-small", IBV_WR_SEND, 256, .receive = 100},
    /* gpudirect/libgdsync#43 */
    {"datagram-without-grh", IBV_WR_SEND, 100, .receive = 100, .ud = true},
    {"receive-not-writable", IBV_WR_SEND, 64, .receive = 64, .receive_read_only = true},
    /* w180112/RDMA-example#4, linzino7/RDMA-example-application#1: posted after rdma_accept(); spdk/spdk#2429: and no
     * retries asked for in rnr_retry_count. */
    {"no-receive", IBV_WR_SEND, 64},
    /* DeepLink-org/DLSlime#71 */
    {"no-receive-for-immediate", IBV_WR_RDMA_WRITE_WITH_IMM, 64},
    {"lkey-is-rkey", IBV_WR_RDMA_WRITE, 64, .lkey = KEY_OTHER},
    {"lkey-unknown", IBV_WR_SEND, 64, .lkey = KEY_UNKNOWN, .receive = 64},
    {"local-too-long", IBV_WR_SEND, 200, .local_offset = LENGTH - 100, .receive = 200},
    {"near-other-pd", IBV_WR_SEND, 64, .other_pd = true, .receive = 64},
    /* ofiwg/fabtests#410 */
    {"read-without-local-write", IBV_WR_RDMA_READ, 64, .take_away_near = ALL},
    {"far-destroyed", IBV_WR_RDMA_WRITE, 64, .act = DESTROY},
    {"far-reset", IBV_WR_RDMA_WRITE, 64, .act = RESET},
    {"far-in-error", IBV_WR_RDMA_WRITE, 64, .act = TO_ERROR},
    {"far-left", IBV_WR_SEND, 64, .receive = 64, .act = LEAVE},
    {"far-stopped", IBV_WR_SEND, 64, .receive = 64, .act = STOP},
    {"wrong-psn", IBV_WR_SEND, 64, .receive = 64, .psn = 7},
    {"wrong-qpn", IBV_WR_SEND, 64, .receive = 64, .qpn = 0x800000},
    {"wrong-mtu", IBV_WR_SEND, 2048, .receive = 4096, .far_mtu = IBV_MTU_1024},
};

/* --- ends ----------------------------------------------------------------------------------------------- */

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd, *other_pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    union ibv_gid gid;
    char *buffer;
};

/* What one end tells the other one. */
struct card {
    uint32_t qpn, rkey, lkey;
    uint64_t address;
    union ibv_gid gid;
    int pid;
};

static void open_end(struct end *end, const struct mistake *mistake, bool near)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_qp_init_attr attributes = {.cap = {16, 16, 2, 2, 0},
                                          .qp_type = mistake->ud ? IBV_QPT_UD : IBV_QPT_RC};
    bool apart = near ? mistake->other_pd : mistake->far_other_pd;
    int access = ALL & ~(near ? mistake->take_away_near : mistake->take_away_far);

    REQUIRE(list && list[0]);
    REQUIRE((end->context = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    REQUIRE(ibv_query_gid(end->context, 1, 0, &end->gid) == 0);
    REQUIRE((end->pd = ibv_alloc_pd(end->context)));
    if (apart)
        REQUIRE((end->other_pd = ibv_alloc_pd(end->context)));
    REQUIRE((end->buffer = aligned_alloc(4096, 2 * LENGTH)));
    memset(end->buffer, 0, 2 * LENGTH);
    if (!near && mistake->receive_read_only)
        access = 0;
    if (!near && (mistake->act == REBIND || mistake->act == UNBIND))
        access |= IBV_ACCESS_MW_BIND;
    REQUIRE((end->mr = ibv_reg_mr(apart ? end->other_pd : end->pd, end->buffer, LENGTH, (unsigned)access)));
    REQUIRE((end->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0)));
    attributes.send_cq = attributes.recv_cq = end->cq;
    REQUIRE((end->qp = ibv_create_qp(end->pd, &attributes)));
}

static void fill_card(struct end *end, const struct mistake *mistake, struct card *card)
{
    *card = (struct card){.qpn = end->qp->qp_num,
                          .rkey = end->mr->rkey,
                          .lkey = end->mr->lkey,
                          .address = (uintptr_t)end->buffer,
                          .gid = end->gid,
                          .pid = getpid()};
}

static void connect_end(struct end *end, const struct mistake *mistake, const struct card *peer, bool near)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234};
    uint8_t granted = mistake->granted ? mistake->granted : 4;

    attributes.qp_access_flags = NOT(IBV_ACCESS_LOCAL_WRITE) & ~(unsigned)(near ? 0 : mistake->take_away_qp);
    REQUIRE(ibv_modify_qp(end->qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                              (mistake->ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = !near && mistake->far_mtu ? mistake->far_mtu : IBV_MTU_4096,
        .dest_qp_num = peer->qpn ^ (near ? mistake->qpn : 0),
        .rq_psn = 1000,
        .max_dest_rd_atomic = near ? 4 : granted,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 1}},
    };
    if (mistake->far_mtu && near)
        attributes.path_mtu = IBV_MTU_2048;
    REQUIRE(ibv_modify_qp(end->qp, &attributes,
                          mistake->ud
                              ? IBV_QP_STATE
                              : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 10,
        .retry_cnt = 2,
        .rnr_retry = 0,
        .sq_psn = 1000 + (near ? mistake->psn : 0),
        .max_rd_atomic = mistake->max_rd_atomic == 255 ? 0
                         : mistake->max_rd_atomic      ? mistake->max_rd_atomic
                                                       : 4,
    };
    REQUIRE(ibv_modify_qp(end->qp, &attributes,
                          mistake->ud ? IBV_QP_STATE | IBV_QP_SQ_PSN
                                      : IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* --- the far end ---------------------------------------------------------------------------------------- */

static uint32_t bind_window(struct end *end, uint32_t rkey)
{
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.bind_mw.mw = end->mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = end->mr,
                                                     .addr = (uintptr_t)end->buffer,
                                                     .length = LENGTH,
                                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    REQUIRE(ibv_post_send(end->qp, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(end->cq).status == IBV_WC_SUCCESS);
    return rkey;
}

static void unbind_window(struct end *end, uint32_t rkey)
{
    struct ibv_send_wr wr = {.wr_id = 2, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.invalidate_rkey = rkey;
    REQUIRE(ibv_post_send(end->qp, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(end->cq).status == IBV_WC_SUCCESS);
}

/* What the far end does wrong, or before the near end does; the card is that of its memory. */
static void prepare_far(struct end *end, const struct mistake *mistake, struct card *card)
{
    struct ibv_sge sge = {(uintptr_t)end->buffer, mistake->receive, end->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 77, .sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

    if (mistake->receive)
        REQUIRE(ibv_post_recv(end->qp, &wr, &bad) == 0);
    switch (mistake->act) {
    case DEREGISTER:
        REQUIRE(ibv_dereg_mr(end->mr) == 0);
        break;
    case DESTROY:
        REQUIRE(ibv_destroy_qp(end->qp) == 0);
        break;
    case RESET:
        REQUIRE(ibv_modify_qp(end->qp, &reset, IBV_QP_STATE) == 0);
        break;
    case TO_ERROR:
        to_error(end->qp);
        break;
    case REBIND:
    case UNBIND:
        REQUIRE((end->mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2)));
        card->rkey = bind_window(end, ibv_inc_rkey(end->mw->rkey));
        unbind_window(end, card->rkey);
        if (mistake->act == REBIND)
            bind_window(end, ibv_inc_rkey(card->rkey));
        break;
    case NEVER_BIND:
        REQUIRE((end->mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2)));
        card->rkey = end->mw->rkey;
        break;
    case NOTHING:
    case LEAVE:
    case STOP:
        break;
    }
}

/* --- the near end --------------------------------------------------------------------------------------- */

static uint32_t choose_key(enum key which, uint32_t right, uint32_t other)
{
    switch (which) {
    case KEY_RIGHT:
        return right;
    case KEY_OTHER:
        return other;
    case KEY_SWAPPED:
        return __builtin_bswap32(right);
    case KEY_UNKNOWN:
        break;
    }
    return right ^ 0x1fff0000; /* of another slot */
}

static void request(struct end *end, const struct mistake *mistake, const struct card *peer)
{
    uint64_t address = peer->address + (uint64_t)(int64_t)mistake->offset;
    struct ibv_sge sge = {(uintptr_t)end->buffer + (uint64_t)mistake->local_offset, mistake->length,
                          choose_key(mistake->lkey, end->mr->lkey, end->mr->rkey)};
    struct ibv_send_wr wrs[8], *bad;
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 1}};
    unsigned count = mistake->count ? mistake->count : 1;

    memset(wrs, 0, sizeof(wrs));
    for (unsigned i = 0; i < count; i++) {
        struct ibv_send_wr *wr = &wrs[i];

        *wr = (struct ibv_send_wr){.wr_id = WR_ID + i,
                                   .next = i + 1 < count ? wr + 1 : NULL,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = mistake->opcode,
                                   .send_flags = IBV_SEND_SIGNALED};
        if (mistake->ud) {
            REQUIRE((wr->wr.ud.ah = ibv_create_ah(end->pd, &to)));
            wr->wr.ud.remote_qpn = peer->qpn;
            wr->wr.ud.remote_qkey = 0x1234;
        } else if (mistake->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr->wr.atomic.remote_addr = address;
            wr->wr.atomic.rkey = peer->rkey;
        } else {
            wr->wr.rdma.remote_addr = mistake->swap_address       ? __builtin_bswap64(address)
                                      : mistake->truncate_address ? (uint32_t)address
                                                                  : address;
            wr->wr.rdma.rkey = choose_key(mistake->rkey, peer->rkey, peer->lkey);
        }
    }
    REQUIRE(ibv_post_send(end->qp, wrs, &bad) == 0);
    for (unsigned i = 0; i < count; i++)
        wait_for_completion(end->cq);
}

/* --- both ----------------------------------------------------------------------------------------------- */

static void give(int fd, const void *data, size_t size)
{
    REQUIRE(write(fd, data, size) == (ssize_t)size);
}

static void take(int fd, void *data, size_t size)
{
    REQUIRE(recv(fd, data, size, MSG_WAITALL) == (ssize_t)size);
}

static void both_here(const struct mistake *mistake)
{
    struct end near = {0}, far = {0};
    struct card near_card, far_card;

    open_end(&near, mistake, true);
    open_end(&far, mistake, false);
    fill_card(&near, mistake, &near_card);
    fill_card(&far, mistake, &far_card);
    connect_end(&far, mistake, &near_card, false);
    connect_end(&near, mistake, &far_card, true);
    prepare_far(&far, mistake, &far_card);
    request(&near, mistake, &far_card);
    if (mistake->ud)
        wait_for_completion(far.cq);
    say("done %d %d", (int)getpid(), (int)getpid());
    wait_for_word();
}

static void far_process(const struct mistake *mistake, int fd)
{
    struct end end = {0};
    struct card card, peer;
    char byte;

    open_end(&end, mistake, false);
    fill_card(&end, mistake, &card);
    give(fd, &card, sizeof(card));
    take(fd, &peer, sizeof(peer));
    connect_end(&end, mistake, &peer, false);
    give(fd, "c", 1);
    take(fd, &byte, 1); /* the near end is connected, too */
    prepare_far(&end, mistake, &card);
    give(fd, &card, sizeof(card));
    if (mistake->act == LEAVE)
        _exit(0);
    if (mistake->ud)
        wait_for_completion(end.cq);
    while (read(fd, &byte, 1) > 0) {
    }
    _exit(0);
}

/* As a program is that was started by this user. */
static void become(unsigned user)
{
    REQUIRE(setgroups(0, NULL) == 0 && setgid(user) == 0 && setuid(user) == 0);
    REQUIRE(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void two_processes(const struct mistake *mistake, bool users)
{
    struct end end = {0};
    struct card card, peer;
    int fds[2], status;
    pid_t child;
    char byte;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        close(fds[0]);
        if (users)
            become(61002);
        far_process(mistake, fds[1]);
    }
    close(fds[1]);
    if (users)
        become(61001);
    open_end(&end, mistake, true);
    fill_card(&end, mistake, &card);
    take(fds[0], &peer, sizeof(peer));
    give(fds[0], &card, sizeof(card));
    take(fds[0], &byte, 1);
    connect_end(&end, mistake, &peer, true);
    give(fds[0], "c", 1);
    take(fds[0], &peer, sizeof(peer));
    if (mistake->act == LEAVE)
        REQUIRE(waitpid(child, &status, 0) == child);
    if (mistake->act == STOP)
        REQUIRE(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);
    request(&end, mistake, &peer);
    say("done %d %d", (int)getpid(), (int)child);
    wait_for_word();
    if (mistake->act == STOP)
        kill(child, SIGCONT);
    close(fds[0]);
    if (mistake->act != LEAVE)
        waitpid(child, &status, 0);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        if (argc < 2) {
            puts(mistakes[i].name);
        } else if (strcmp(argv[1], mistakes[i].name) == 0) {
            if (argc > 2 && strcmp(argv[2], "same") == 0)
                both_here(&mistakes[i]);
            else
                two_processes(&mistakes[i], argc > 2);
            return 0;
        }
    }
    return argc > 1;
}
