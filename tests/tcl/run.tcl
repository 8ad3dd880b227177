# Starts Redis's own Tcl suite, which is used as it is, with three things added from outside.

# The main program flushes its output at its end only; hanging files would take their story with them.
fconfigure stdout -buffering line

# Tests send a blocking command on one connection and the next command on another, and expect them to be served in that
# order. Redis has one thread and a short way from its sockets; where cores share the connections nobody promises an
# order among them, and on a busy machine Redis mixes them up, too. So a blocking command is followed by a wait, until
# its client is answered or blocked.
namespace eval serve_in_order {
    variable blocking {blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop xread xreadgroup wait}
    variable patience_ms 2000

    # Takes the place of the procedure by which every client of the suite sends its commands.
    proc dispatch {id method arguments} {
        set result [uplevel 1 [list ::redis::suites_own_dispatch $id $method $arguments]]
        variable blocking
        if {[string tolower $method] in $blocking && $::redis::deferred($id) && $::redis::blocking($id)} {
            # What goes wrong here is for the test itself to find.
            catch {
                set side [socket {*}$::redis::addr($id)]
                catch {wait_until_served $::redis::fd($id) $side}
                close $side
            }
        }
        return $result
    }

    proc wait_until_served {client side} {
        variable patience_ms
        set own [lindex [fconfigure $client -sockname] 2]
        fconfigure $side -translation binary
        set end [expr {[clock milliseconds] + $patience_ms}]
        while {[clock milliseconds] < $end && ![has_answer $client] && ![is_blocked $side $own]} {}
    }

    proc has_answer {client} {
        variable event
        set event no
        fileevent $client readable {set ::serve_in_order::event yes}
        set timer [after 2 {set ::serve_in_order::event no}]
        vwait ::serve_in_order::event
        fileevent $client readable {}
        after cancel $timer
        return $event
    }

    proc is_blocked {side port} {
        puts -nonewline $side "CLIENT LIST\r\n"
        flush $side
        set size [string trim [gets $side] "$\r"]
        if {![string is integer -strict $size]} {error "no list of clients"}
        set clients [read $side $size]
        read $side 2
        return [regexp " addr=\[^ \]+:$port \[^\n\]* flags=\[^ \]*b" $clients]
    }

    # Called whenever a file of the suite has been read.
    proc sourced {args} {
        if {[info procs ::redis::__dispatch__raw__] ne {}} {
            trace remove execution source leave ::serve_in_order::sourced
            rename ::redis::__dispatch__raw__ ::redis::suites_own_dispatch
            interp alias {} ::redis::__dispatch__raw__ {} ::serve_in_order::dispatch
        }
    }
}
trace add execution source leave ::serve_in_order::sourced

# The suite is that of Redis 7.0, and some answers here are those of 7.2, which changed them: small sets and lists are
# listpacks, where they were a hash table and a quicklist, and a client that reads for a group whose stream has gone is
# told what there is now, where it was told that the key no longer exists. The old answers hold as well, since the list
# of tests is learnt from a Redis 7.0.
namespace eval words_of_7_2 {
    # Members that a listpack has at most, of a set.
    variable members_max 128

    proc is_small {key} {
        variable members_max
        switch [r type $key] {
            list {return yes}
            set {return [expr {[r scard $key] <= $members_max}]}
            default {return no}
        }
    }

    proc assert_encoding {encoding key} {
        if {$encoding in {hashtable quicklist} && [r object encoding $key] eq {listpack} && [is_small $key]} return
        uplevel 1 [list ::suites_own_assert_encoding $encoding $key]
    }

    proc assert_error {pattern code args} {
        if {$pattern ne {*no longer exists*}} {
            return [uplevel 1 [list ::suites_own_assert_error $pattern $code {*}$args]]
        }
        catch {uplevel 1 $code} answer
        if {[string match {NOGROUP No such key *} $answer] || [string match {WRONGTYPE *} $answer]} return
        ::suites_own_assert_error $pattern [list error $answer]
    }

    proc sourced {args} {
        if {[info procs ::assert_encoding] ne {} && [info procs ::assert_error] ne {}} {
            trace remove execution source leave ::words_of_7_2::sourced
            foreach name {assert_encoding assert_error} {
                rename ::$name ::suites_own_$name
                interp alias {} ::$name {} ::words_of_7_2::$name
            }
        }
    }
}
trace add execution source leave ::words_of_7_2::sourced

# Read and evaluated, so that the processes which it starts begin with this file, too.
set file [open tests/test_helper.tcl]
set text [read $file]
close $file
eval $text
