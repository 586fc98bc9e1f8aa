"""One tree from four sources; whatever is unknown is refused, with where it was found."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.config import Config, ConfigError, load
from tests.shared.config.conftest import LEAVES, given_in, value


class TestPrecedence:
    @given(st.booleans(), st.booleans(), st.booleans())
    def test_is_defaults_file_environment_flags(self, file: bool, env: bool, flag: bool):
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder) / "p.toml"
            path.write_text("[gateway]\nport = 1001\n" if file else "")
            loaded = load({"port": 1003 if flag else None}, {"PILLION_PORT": "1002"} if env else {}, path)
            expected = (
                (1003, "--port") if flag else (1002, "PILLION_PORT") if env else (1001, str(path)) if file
                else (8000, "default")
            )  # fmt: skip
            assert value(loaded, "port") == expected

    def test_is_by_leaf_and_not_by_section(self, tmp_path: Path):
        loaded = given_in(
            {
                "file": '[gateway]\nport = 1\nhost = "file"\nmax_choices = 3\n[scheduler]\ntile = 8\n',
                "env": {"PILLION_HOST": "environment", "PILLION_MAX_CHOICES": "4"},
                "flag": {"max_choices": 5},
            },
            tmp_path,
        )
        file = str(tmp_path / "pillion.toml")
        assert value(loaded, "port") == (1, file)
        assert value(loaded, "host") == ("environment", "PILLION_HOST")
        assert value(loaded, "max_choices") == (5, "--max-choices")
        assert value(loaded, "tile") == (8, file)
        assert value(loaded, "watermark") == (0.01, "default")

    def test_absent_is_no_value(self, tmp_path: Path):
        loaded = load({"port": None, "api_key": ()}, {"PILLION_PORT": "", "PILLION_API_KEY": "a,b"})
        assert value(loaded, "port") == (8000, "default")  # an empty variable is none
        assert value(loaded, "api_key") == (("a", "b"), "PILLION_API_KEY")

    def test_the_file_may_be_named_by_the_environment_and_the_flag_wins(self, tmp_path: Path):
        for name, port in (("a", 1), ("b", 2)):
            (tmp_path / name).write_text(f"[gateway]\nport = {port}\n")
        environ = {"PILLION_CONFIG": str(tmp_path / "a")}
        assert load({}, environ).config.gateway.port == 1
        assert load({}, environ, tmp_path / "b").config.gateway.port == 2

    def test_the_defaults_are_the_tree_s(self):
        loaded = load({}, {})
        assert loaded.config == Config()
        assert {setting.source for setting in loaded.settings} == {"default"}
        assert [setting.leaf.name for setting in loaded.settings] == list(LEAVES)


class TestUnknownNames:
    def test_in_the_environment(self):
        with pytest.raises(ConfigError, match="unknown variable PILLION_PROT; did you mean PILLION_PORT"):
            load({}, {"PILLION_PROT": "1"})
        assert load({}, {"OTHER_PROT": "1", "PILLIONS": "2"}).config == Config()

    def test_among_the_flags(self):
        with pytest.raises(ConfigError, match="unknown flag --max-num-seq; did you mean max_num_seqs"):
            load({"max_num_seq": 1}, {})

    @pytest.mark.parametrize(
        "text, message",
        [
            ("[gateway]\nprot = 1", r"unknown key prot in \[gateway\]; did you mean port"),
            ("[scheduler]\nport = 1", r"unknown key port in \[scheduler\]"),
            ("[gatway]\nport = 1", r"unknown section \[gatway\]; did you mean gateway"),
            ("gateway = 1", "gateway must be a section"),
            ("[gateway.more]\nport = 1", r"unknown key more in \[gateway\]"),
            ("[gateway]\nport 1", "is no TOML"),
        ],
    )
    def test_in_the_file(self, tmp_path: Path, text: str, message: str):
        with pytest.raises(ConfigError, match=message) as error:
            given_in({"file": text}, tmp_path)
        assert str(tmp_path / "pillion.toml") in str(error.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"cannot read the configuration file .*nowhere: No such file"):
            load({}, {"PILLION_CONFIG": str(tmp_path / "nowhere")})

    def test_a_file_that_is_no_text(self, tmp_path: Path):
        (tmp_path / "p").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="is no TOML"):
            load({}, {}, tmp_path / "p")
