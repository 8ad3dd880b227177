//! What DEBUG SLEEP and DEBUG PROTOCOL do, for clients and for scripts.

use command::Refusal;
use resp::{Args, Writer};
use stdx::Duration;

/// How long a DEBUG SLEEP lasts.
pub(crate) fn sleep_duration(args: Args<'_>) -> Result<Duration, Refusal> {
    let seconds = std::str::from_utf8(args.at(2)).ok().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| (0.0..=3_600.0).contains(seconds)).ok_or(Refusal::NOT_A_FLOAT)?;
    Ok(Duration::from_secs_f64(seconds))
}

/// What DEBUG PROTOCOL answers.
pub(crate) fn write_sample(args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match args.at(2).to_ascii_lowercase().as_slice() {
        b"string" => writer.bulk(b"Hello World"),
        b"integer" => writer.integer(12_345),
        b"double" => writer.double_text("3.141"),
        b"null" => writer.null(),
        b"array" => {
            writer.array(3);
            (0..3).for_each(|number| writer.integer(number));
        }
        b"set" => {
            writer.set(3);
            (0..3).for_each(|number| writer.integer(number));
        }
        b"map" => {
            writer.map(3);
            for number in 0..3 {
                writer.integer(number);
                writer.boolean(number == 1);
            }
        }
        b"verbatim" => writer.verbatim("txt", b"This is a verbatim\nstring"),
        b"attrib" => {
            if writer.protocol() == resp::Protocol::Resp3 {
                writer.attribute(1);
                writer.bulk(b"key-popularity");
                writer.array(2);
                writer.bulk(b"key:123");
                writer.integer(90);
            }
            writer.bulk(b"Some real reply following the attribute");
        }
        b"push" if writer.protocol() == resp::Protocol::Resp2 => {
            return Err(Refusal::new("ERR RESP2 is not supported by this command"));
        }
        b"push" => {
            writer.push(2);
            writer.bulk(b"server-cpu-usage");
            writer.integer(42);
            writer.bulk(b"Some real reply following the push reply");
        }
        b"true" => writer.boolean(true),
        b"false" => writer.boolean(false),
        b"bignum" => match writer.protocol() {
            resp::Protocol::Resp2 => writer.bulk(BIG_NUMBER.as_bytes()),
            resp::Protocol::Resp3 => writer.raw(format!("({BIG_NUMBER}\r\n").as_bytes()),
        },
        _ => {
            return Err(Refusal::new(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

const BIG_NUMBER: &str = "1234567999999999999999999999999999999";
