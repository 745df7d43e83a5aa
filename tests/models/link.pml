/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The handshake of a link (local/handshake.c, handshake_accept.c): HELLO, WELCOME, READY over a socket whose end both sides
 * see; either process may die between any two steps. Then memory is taken back by epoch (local/reference.c).
 *
 * Invariants:
 *   installed_once  a process has at most one link for a socket, and takes it down once
 *   ends            with a partner that dies, whoever lives comes to an end without a link
 *   void_epoch      bytes that were fetched by reference across a revocation are not used */
mtype = { HELLO, WELCOME, READY, END };

chan to_acceptor = [3] of { mtype };
chan to_initiator = [3] of { mtype };
byte links_i = 0, links_a = 0, downs_i = 0, downs_a = 0;
byte epoch = 0;      /* written by the owner, the initiator */
bool reused = false; /* the owner has given the buffer something else */
bool initiator_over = false, acceptor_over = false;

proctype initiator()
{
    mtype got = END;

    to_acceptor!HELLO;
    if :: true -> goto dies :: true fi;
    to_initiator?got;
    if
    :: got == WELCOME ->
        links_i++;
        if :: true -> goto dies :: true fi;
        to_acceptor!READY;
        /* a request by reference, then it is flushed: revoke, fence, reuse */
        epoch = epoch + 1;
        reused = true;
        if :: to_initiator?END -> downs_i++ :: true fi;
        to_acceptor!END
    :: else -> skip
    fi;
    goto over;
dies:
    to_acceptor!END; /* by the kernel */
over:
    initiator_over = true
}

proctype acceptor()
{
    mtype got = END;
    byte before;
    bool was_reused;

    to_acceptor?got;
    if
    :: got == HELLO ->
        if :: true -> to_initiator!END; goto over :: true fi; /* dies */
        to_initiator!WELCOME;
        to_acceptor?got;
        if
        :: got == READY ->
            links_a++;
            before = epoch;         /* read with the record */
            was_reused = reused;    /* the copy */
#ifdef NO_EPOCH
            assert(before > 0 || !was_reused);
#else
            if /* looks again behind the copy */
            :: epoch == before && before == 0 -> assert(!was_reused)
            :: else -> skip /* void: the packet is repeated */
            fi;
#endif
            to_acceptor?END;
            downs_a++;
            to_initiator!END
        :: else -> skip
        fi
    :: else -> skip
    fi;
over:
    acceptor_over = true
}

init
{
    atomic { run initiator(); run acceptor() };
    (initiator_over && acceptor_over);
    assert(links_i <= 1 && links_a <= 1 && downs_i <= links_i && downs_a == links_a)
}
