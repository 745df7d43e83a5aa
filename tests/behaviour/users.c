/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What processes of different users share, and what they do not: memory that an rkey grants
 * (verbs.md §4) crosses users, frames of raw packet QPs and the rules for them (§7.6) do not. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "frames.h"

enum { ONE_USER = 61001, ANOTHER_USER = 61002, ONE = 1, ANOTHER = 2, SAME_AS_ONE = 3, USERS_SIDES = 3 };

static void become_here(void *arg)
{
    const uid_t *user = arg;

    CHECK(!setresgid(*user, *user, *user) && !setresuid(*user, *user, *user), "setresuid: %s",
          strerror(errno));
    /* What a change of user has taken away */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 1);
}

/* The near side stays who it is, and only directs. */
static void split_users(void)
{
    static const uid_t users[] = {[ONE] = ONE_USER, [ANOTHER] = ANOTHER_USER, [SAME_AS_ONE] = ONE_USER};

    if (geteuid() != 0 || !two_processes())
        skip_because("needs root, to be several users");
    for (int i = ONE; i <= USERS_SIDES; i++) {
        uid_t user = users[i];

        side_call(&sides[i], become_here, &user, sizeof(user));
    }
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* a is one user's; b, whose memory it is about, another's. */
static void connect_users(struct pair *p, unsigned int mr_access)
{
    struct end_attr attr = attr_of(IBV_QPT_RC), attr_b;

    attr.size = 1 << 18;
    attr_b = attr;
    attr_b.mr_access = mr_access;
    split_users();
    end_open(&p->a, &sides[ONE], &attr);
    end_open(&p->b, &sides[ANOTHER], &attr_b);
    end_connect(&p->a, &p->b);
}

static struct send with_key(struct send send, uint32_t rkey, uint64_t address)
{
    if (send.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        send.wr.wr.atomic.rkey = rkey;
        send.wr.wr.atomic.remote_addr = address;
    } else {
        send.wr.wr.rdma.rkey = rkey;
        send.wr.wr.rdma.remote_addr = address;
    }
    return send;
}

/* a writes, reads and adds at this address of b's, in turn. The word there is 0 before. */
static void use_memory(struct pair *p, uint32_t rkey, uint64_t address)
{
    static const size_t sizes[] = {8, 4096, 65536};
    struct end *a = &p->a;

    end_send(a, with_key(a_fetch_add(a, 1, 0, &p->b, 0, 5), rkey, address));
    end_expect_success(a, SQ, 1, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(a, 0), 0);
    end_send(a, with_key(a_fetch_add(a, 2, 0, &p->b, 0, 5), rkey, address));
    end_expect_success(a, SQ, 2, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(a, 0), 5);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(a, 0, sizes[i], i);
        end_send(a, with_key(a_write(a, 3, 0, sizes[i], &p->b, 0), rkey, address));
        end_expect_success(a, SQ, 3, IBV_WC_RDMA_WRITE);
        end_fill(a, 0, sizes[i], 99);
        end_send(a, with_key(a_read(a, 4, 0, sizes[i], &p->b, 0), rkey, address));
        end_expect_success(a, SQ, 4, IBV_WC_RDMA_READ);
        end_expect_data(a, 0, sizes[i], i);
    }
}

static void refuse_memory(struct end *end, uint32_t rkey, uint64_t address)
{
    end_send(end, with_key(a_write(end, 7, 0, 8, end, 0), rkey, address));
    end_expect_status(end, SQ, 7, IBV_WC_REM_ACCESS_ERR);
}

struct window {
    enum ibv_mw_type type;
    struct ibv_mw *mw;
    uint32_t rkey;
};

enum { WINDOW_AT = 4096, WINDOW_LENGTH = 65536 };

static void bind_here(struct end *end, void *arg)
{
    struct window *window = arg;
    const struct ibv_mw_bind_info info = {
        .mr = end->mr,
        .addr = (uintptr_t)end->buf + WINDOW_AT,
        .length = WINDOW_LENGTH,
        .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};

    window->mw = ibv_alloc_mw(end->pd, window->type);
    CHECK(window->mw, "ibv_alloc_mw: %s", strerror(errno));
    if (window->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = 50, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

        CHECK_ZERO(ibv_bind_mw(end->qp, window->mw, &bind));
        window->rkey = window->mw->rkey;
    } else {
        struct ibv_send_wr wr = {.wr_id = 50, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED},
                           *bad;

        window->rkey = ibv_inc_rkey(window->mw->rkey);
        wr.bind_mw.mw = window->mw;
        wr.bind_mw.rkey = window->rkey;
        wr.bind_mw.bind_info = info;
        CHECK_ZERO(ibv_post_send(end->qp, &wr, &bad));
    }
}

static void dealloc_here(struct end *end, void *arg)
{
    CHECK_ZERO(ibv_dealloc_mw(((struct window *)arg)->mw));
}

static void a_region_without_remote_rights_is_closed_to_another_user(void **state)
{
    struct pair p;

    connect_users(&p, IBV_ACCESS_LOCAL_WRITE);
    refuse_memory(&p.a, p.b.rkey, (uintptr_t)p.b.buf);
    pair_close(&p);
}

/* §4.4: the rkey of a type 1 window is good for every QP of the PD, that of a type 2 one here, too (2B). */
static void windows_let_another_user_in(void **state)
{
    static const enum ibv_mw_type types[] = {IBV_MW_TYPE_1, IBV_MW_TYPE_2};
    struct window window[COUNT(types)];
    struct pair p;

    /* The region has no remote right: only the window grants one. */
    connect_users(&p, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    for (size_t i = 0; i < COUNT(types); i++) {
        struct end a, b;

        window[i].type = types[i];
        AT(&p.b, bind_here, &window[i]);
        end_expect_success(&p.b, SQ, 50, IBV_WC_BIND_MW);
        end_poke64(&p.b, WINDOW_AT, 0);
        use_memory(&p, window[i].rkey, (uintptr_t)p.b.buf + WINDOW_AT);
        /* Through another connection to the PD, which does not survive what it may not do */
        end_share(&a, &p.a);
        end_share(&b, &p.b);
        end_connect(&a, &b);
        end_send(&a, with_key(a_read(&a, 5, 0, 64, &b, 0), window[i].rkey, (uintptr_t)p.b.buf + WINDOW_AT));
        end_expect_success(&a, SQ, 5, IBV_WC_RDMA_READ);
        refuse_memory(&a, window[i].rkey, (uintptr_t)p.b.buf + WINDOW_AT + WINDOW_LENGTH);
        end_close_qp(&a);
        end_close_qp(&b);
    }
    AT(&p.b, dealloc_here, &window[0]);
    /* Another user invalidates what is his to invalidate: the window of type 2 (§4.5) */
    {
        struct send send = a_send(&p.a, 6, 0, 8);

        send.wr.opcode = IBV_WR_SEND_WITH_INV;
        send.wr.invalidate_rkey = window[1].rkey;
        end_recv(&p.b, a_recv(&p.b, 6, 0, 8));
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, 6, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, 6, IBV_WC_RECV);
    }
    refuse_memory(&p.a, window[1].rkey, (uintptr_t)p.b.buf + WINDOW_AT);
    AT(&p.b, dealloc_here, &window[1]);
    pair_close(&p);
}

struct place {
    uint8_t *at;
    struct ibv_mr *mr;
    struct ibv_dm *dm;
    uint32_t rkey;
    bool implicit;
    uint64_t word;
};

enum {
    PLACE_SIZE = 1 << 20,
    REMOTE =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
};

static void reserve_here(struct end *end, void *arg)
{
    struct place *place = arg;

    place->at = mmap(NULL, PLACE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(place->at != MAP_FAILED, "mmap: %s", strerror(errno));
    place->mr = place->implicit ? ibv_reg_mr(end->pd, NULL, SIZE_MAX, REMOTE | IBV_ACCESS_ON_DEMAND)
                                : ibv_reg_mr(end->pd, place->at, PLACE_SIZE, REMOTE | IBV_ACCESS_ON_DEMAND);
    CHECK(place->mr, "ibv_reg_mr: %s", strerror(errno));
    place->rkey = place->mr->rkey;
}

static void map_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(mmap(place->at, PLACE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == place->at,
          "mmap: %s", strerror(errno));
}

static void forget_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK_ZERO(ibv_dereg_mr(place->mr));
    CHECK_ZERO(munmap(place->at, PLACE_SIZE));
}

static void on_demand_memory_of_another_user_is_reached_once_it_is_there(void **state)
{
    struct place place[2] = {{.implicit = false}, {.implicit = true}};
    struct pair p;

    connect_users(&p, IBV_ACCESS_LOCAL_WRITE);
    for (size_t i = 0; i < COUNT(place); i++) {
        AT(&p.b, reserve_here, &place[i]);
        AT(&p.b, map_here, &place[i]);
        use_memory(&p, place[i].rkey, (uintptr_t)place[i].at + 4096);
        AT(&p.b, forget_here, &place[i]);
    }
    AT(&p.b, reserve_here, &place[0]);
    refuse_memory(&p.a, place[0].rkey, (uintptr_t)place[0].at); /* nothing is there */
    AT(&p.b, forget_here, &place[0]);
    pair_close(&p);
}

static void alloc_dm_here(struct end *end, void *arg)
{
    struct ibv_alloc_dm_attr attr = {.length = 1 << 17};
    struct place *place = arg;

    place->dm = ibv_alloc_dm(end->context, &attr);
    CHECK(place->dm, "ibv_alloc_dm: %s", strerror(errno));
    place->mr = ibv_reg_dm_mr(end->pd, place->dm, 0, 1 << 17, IBV_ACCESS_ZERO_BASED | REMOTE);
    CHECK(place->mr, "ibv_reg_dm_mr: %s", strerror(errno));
    place->rkey = place->mr->rkey;
}

static void read_dm_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK_ZERO(ibv_memcpy_from_dm(&place->word, place->dm, 64, sizeof(place->word)));
}

static void free_dm_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK_ZERO(ibv_dereg_mr(place->mr));
    CHECK_ZERO(ibv_free_dm(place->dm));
}

static void device_memory_of_another_user_is_reached_by_its_key(void **state)
{
    struct place place = {0};
    struct pair p;

    connect_users(&p, IBV_ACCESS_LOCAL_WRITE);
    AT(&p.b, alloc_dm_here, &place);
    use_memory(&p, place.rkey, 64);
    AT(&p.b, read_dm_here, &place);
    assert_int_equal(place.word, end_peek64(&p.a, 0)); /* what came last */
    refuse_memory(&p.a, place.rkey, 1 << 17);
    AT(&p.b, free_dm_here, &place);
    pair_close(&p);
}

/* --- frames --------------------------------------------------------------------------------------------- */

struct counting {
    struct ibv_counters *counters;
    uint64_t packets;
};

static void make_counters_here(struct end *end, void *arg)
{
    struct ibv_counters_init_attr init = {0};
    struct ibv_counter_attach_attr point = {IBV_COUNTER_PACKETS, 0, 0};
    struct counting *counting = arg;

    counting->counters = ibv_create_counters(end->context, &init);
    CHECK(counting->counters, "ibv_create_counters: %s", strerror(errno));
    CHECK_ZERO(ibv_attach_counters_point_flow(counting->counters, &point, NULL));
}

static void read_counters_here(struct end *end, void *arg)
{
    struct counting *counting = arg;

    CHECK_ZERO(
        ibv_read_counters(counting->counters, &counting->packets, 1, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
}

static void destroy_counters_here(struct end *end, void *arg)
{
    CHECK_ZERO(ibv_destroy_counters(((struct counting *)arg)->counters));
}

/* A process with a raw QP, a rule that counts, and one for a marker. */
struct station {
    struct end end;
    struct counting counting;
    struct ibv_flow *flow, *marker;
};

static void open_station(struct station *station, struct side *side, struct rule rule)
{
    open_raw(&station->end, side);
    AT(&station->end, make_counters_here, &station->counting);
    if (rule.attr.type != IBV_FLOW_ATTR_SNIFFER) /* which takes no action */
        rule = with_count(rule, station->counting.counters);
    station->flow = steer(&station->end, rule);
    station->marker = steer(&station->end, for_mac(to_marker, 0));
}

static uint64_t packets_at(struct station *station)
{
    AT(&station->end, read_counters_here, &station->counting);
    return station->counting.packets;
}

static void close_station(struct station *station)
{
    unsteer(&station->end, station->flow);
    unsteer(&station->end, station->marker);
    AT(&station->end, destroy_counters_here, &station->counting);
    end_close(&station->end);
}

/* Frames of one user's process, for the other user and for one of the same. What a rule of his says of them,
 * even the first to be asked, a sniffer's or one that drops all, is nothing to anybody else. */
static void frames_and_rules_stay_with_their_user(void **state)
{
    struct ibv_flow_eth_filter all = {0};
    const struct rule foreign[] = {
        for_mac(to_far, 0),
        with_drop(with_eth(a_rule(IBV_FLOW_ATTR_NORMAL, 1), &all, &all)),
        a_rule(IBV_FLOW_ATTR_SNIFFER, 0),
        a_rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0),
    };
    const struct bytes frame = a_frame(to_far, 1), own = a_frame(to_marker, 3);
    struct station other, same;
    struct end sender;

    split_users();
    open_raw(&sender, &sides[ONE]);
    open_station(&same, &sides[SAME_AS_ONE], for_mac(to_far, 3));
    for (size_t i = 0; i < COUNT(foreign); i++) {
        const uint64_t counted = packets_at(&same);

        open_station(&other, &sides[ANOTHER], foreign[i]);
        post_slot(&other.end, 0);
        post_slot(&same.end, 0);
        send_frame(&sender, &frame);
        expect_frame(&same.end, 0, &frame);
        assert_int_equal(packets_at(&same), counted + 1);
        send_frame(&other.end, &own);
        expect_frame(&other.end, 0, &own);
        assert_int_equal(packets_at(&other), 0);
        close_station(&other);
    }
    close_station(&same);
    end_close(&sender);
}

/* Processes of one user are like functions of one NIC: each has every frame, and its rules are its own. */
static void rules_of_a_process_are_nothing_to_another_of_its_user(void **state)
{
    const struct bytes frame = a_frame(to_far, 1), group = a_frame(to_group, 2);
    struct station first, second;
    struct ibv_flow *grouped;
    struct end sender;

    split_users();
    /* The sender's process last: it knows all others once it has a rule. One that another process links
     * itself to hears of that only afterwards, and frames are not repeated. */
    open_station(&second, &sides[SAME_AS_ONE], for_mac(to_far, 7));
    open_station(&first, &sides[ONE], with_drop(for_mac(to_far, 0)));
    grouped = steer(&second.end, a_rule(IBV_FLOW_ATTR_MC_DEFAULT, 0));
    end_share(&sender, &first.end);
    raw_to_rts(&sender);
    for (uint64_t i = 0; i < 3; i++) {
        post_slot(&second.end, i);
        send_frame(&sender, &frame);
        expect_frame(&second.end, i, &frame);
        assert_int_equal(packets_at(&second), i + 1);
    }
    post_slot(&second.end, 3);
    send_frame(&sender, &group);
    expect_frame(&second.end, 3, &group);
    assert_int_equal(packets_at(&second), 3);
    post_slot(&first.end, 0);
    expect_nothing_before(&sender, &first.end, 0);
    assert_int_equal(packets_at(&first), 3);
    unsteer(&second.end, grouped);
    end_close_qp(&sender);
    close_station(&second);
    close_station(&first);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_region_without_remote_rights_is_closed_to_another_user, .fars = USERS_SIDES),
        TEST_WITH(windows_let_another_user_in, .fars = USERS_SIDES),
        TEST_WITH(on_demand_memory_of_another_user_is_reached_once_it_is_there, .fars = USERS_SIDES),
        TEST_WITH(device_memory_of_another_user_is_reached_by_its_key, .fars = USERS_SIDES),
        TEST_WITH(frames_and_rules_stay_with_their_user, .fars = USERS_SIDES),
        TEST_WITH(rules_of_a_process_are_nothing_to_another_of_its_user, .fars = USERS_SIDES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
