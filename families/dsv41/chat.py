from tensorfold.core.family_api import ChatFormat

CHAT = ChatFormat(template="")
